"""The types of configuration values that have a notation and a parser of their own.

Every class has a method `parse`, which raises ValueError for an invalid text. `parse` converts the result of `str` back
to an equal value. `ALLOWED` describes the allowed texts, and `NOTATION` is the placeholder in help.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Protocol, Self, runtime_checkable


@runtime_checkable
class Leaf(Protocol):
    """The interface of the classes in this module."""

    NOTATION: ClassVar[str]
    ALLOWED: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text. Raise ValueError if it is invalid."""


_SECOND: Final = 10**9
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_LONGEST: Final = 2**63 - 1
"""The longest duration in nanoseconds, some 292 years. Go's time.Duration is a 64-bit integer of nanoseconds."""
_TERM: Final = re.compile(r"(\d{1,19}(?:\.\d{0,19})?|\.\d{1,19})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION: Final = re.compile(rf"([+-]?)((?:{_TERM.pattern})+)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration of at least 0, in the notation of Go's time.ParseDuration, such as ``1h2m3.5s``, ``250ms`` or
    ``0``."""

    NOTATION: ClassVar[str] = "DURATION"
    ALLOWED: ClassVar[str] = "a duration of 0 or more with its unit, such as 30s, 1m30s or 250ms"
    LEAST: ClassVar[int] = 0

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Go's notation. Raise ValueError for an invalid text, or a duration below `LEAST` nanoseconds."""
        if text in ("0", "+0", "-0"):
            nanoseconds = 0
        elif match := _DURATION.fullmatch(text):
            size = sum(int(Fraction(number) * _UNITS[unit]) for number, unit in _TERM.findall(match[2]))
            nanoseconds = -size if match[1] == "-" else size
        else:
            raise ValueError(text)
        if not cls.LEAST <= nanoseconds <= _LONGEST:
            raise ValueError(text)
        return cls(nanoseconds)

    @classmethod
    def of(cls, *, seconds: float) -> Self:
        """Make a duration from seconds, rounded to nanoseconds."""
        return cls(round(seconds * _SECOND))

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.nanoseconds / _SECOND

    def __str__(self) -> str:
        """Format the duration as Go does, such as ``1h2m3.5s``, ``1.5ms`` or ``0s``."""
        if self.nanoseconds < _SECOND:
            for unit in ("ms", "µs", "ns"):
                if self.nanoseconds >= _UNITS[unit]:
                    return _decimal(self.nanoseconds, _UNITS[unit]) + unit
            return "0s"
        minutes, rest = divmod(self.nanoseconds, 60 * _SECOND)
        hours, minutes = divmod(minutes, 60)
        text = _decimal(rest, _SECOND) + "s"
        if minutes or hours:
            text = f"{minutes}m{text}"
        return f"{hours}h{text}" if hours else text


class PositiveDuration(Duration):
    """A duration greater than 0."""

    __slots__ = ()
    ALLOWED = "a duration greater than 0 with its unit, such as 30s, 1m30s or 250ms"
    LEAST = 1


class NanosecondsOrDuration(Duration):
    """A duration that may also be given as an integer of nanoseconds, for ``logging.flushFrequency`` (component-base
    logs/api/v1)."""

    __slots__ = ()
    ALLOWED = "a duration of 0 or more, such as 5s, or a whole number of nanoseconds"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Go's notation or nanoseconds."""
        if text.isascii() and text.isdecimal() and int(text) <= _LONGEST:
            return cls(int(text))
        return super().parse(text)


def _decimal(count: int, unit: int) -> str:
    whole, rest = divmod(count, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports from `first` to `last`, both included. If both are 0, the kernel chooses ports."""

    NOTATION: ClassVar[str] = "PORTS"
    ALLOWED: ClassVar[str] = (
        "ports from 1 to 65535 as first-last (300-2000), first+count (300+10) or one port (300);"
        " empty for ports that the kernel chooses"
    )

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse kube-proxy's notation. As in kube-proxy, a range ``first+count`` is cut at 65535. Raise ValueError if
        the text is invalid."""
        text = text.strip()
        if text in ("", "0", "0-0"):
            return cls()
        match = re.fullmatch(r"(\d{1,5})(?:\s*([-+])\s*(\d{1,5}))?", text, re.ASCII)
        if match is None:
            raise ValueError(text)
        first = int(match[1])
        last = first
        if match[2] == "-":
            last = int(match[3])
        elif match[2] == "+":
            last = min(first + int(match[3]), 65535)
        if not 1 <= first <= last <= 65535:
            raise ValueError(text)
        return cls(first, last)

    def __bool__(self) -> bool:
        return self.first != 0

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self else ""


class Ports(PortRange):
    """One port, or a range of ports that is not empty."""

    __slots__ = ()
    ALLOWED = "ports from 1 to 65535: one (443), or first-last (30000-32767)"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the notation of a port range. Raise ValueError if the text is invalid or the range is empty."""
        ports = super().parse(text)
        if not ports:
            raise ValueError(text)
        return ports

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """The number of workers. None means that it depends on the number of CPUs."""

    NOTATION: ClassVar[str] = "N|auto"
    ALLOWED: ClassVar[str] = "auto, or a number from 0 (everything in one process) to 64"
    MAX: ClassVar[int] = 64

    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number or ``auto``. Raise ValueError if the text is neither."""
        if text == "auto":
            return cls()
        if not (text.isascii() and text.isdecimal() and int(text) <= cls.MAX):
            raise ValueError(text)
        return cls(int(text))

    def __str__(self) -> str:
        return "auto" if self.number is None else str(self.number)


class _MatchedText(str):
    """A string that has to match a pattern, and is kept unchanged."""

    __slots__ = ()
    PATTERN: ClassVar[re.Pattern[str]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the text as a value. Raise ValueError unless the whole text matches the pattern."""
        if not cls.PATTERN.fullmatch(text):
            raise ValueError(text)
        return cls(text)


class LabelValue(_MatchedText):
    """Holds the value of a label, such as the name of a zone. The value may be empty."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "NAME"
    ALLOWED: ClassVar[str] = "at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    PATTERN = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class Quantity(_MatchedText):
    """A Kubernetes resource quantity such as ``64Ki`` or ``1.5M``, kept as text."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "QUANTITY"
    ALLOWED: ClassVar[str] = "a quantity, such as 0, 65536 or 64Ki"
    PATTERN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)


class Namespace(_MatchedText):
    """Holds the name of a namespace, which is an RFC 1123 label. The name may be empty."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "NAME"
    ALLOWED: ClassVar[str] = (
        "a namespace: at most 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
    )
    PATTERN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)?")
