"""Values of the configuration with their own notation and parser.

Every class has `parse`, which raises ValueError for an invalid text, and a `str` that `parse` reads back to an equal
value. `ALLOWED` describes the allowed texts in words, and `NOTATION` is the placeholder in help.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Protocol, Self, runtime_checkable

from kubeproxy.model import Address, Family, family_of, parse_address


@runtime_checkable
class Leaf(Protocol):
    """The interface of these classes."""

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
"""The longest duration: Go's time.Duration is an int64 of nanoseconds (some 292 years)."""
_TERM: Final = re.compile(r"(\d{1,19}(?:\.\d{0,19})?|\.\d{1,19})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION: Final = re.compile(rf"([+-]?)((?:{_TERM.pattern})+)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time, not negative, in Go's notation (time.ParseDuration): ``1h2m3.5s``, ``250ms``, ``0``."""

    NOTATION: ClassVar[str] = "DURATION"
    ALLOWED: ClassVar[str] = "a duration of 0 or more with its unit, such as 30s, 1m30s or 250ms"
    LEAST: ClassVar[int] = 0

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Go's notation. Raise ValueError for an invalid text, and for a duration below `LEAST`."""
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
        """Convert seconds, to the nearest nanosecond."""
        return cls(round(seconds * _SECOND))

    @property
    def seconds(self) -> float:
        """Return the duration in seconds, the unit of the rest of the program."""
        return self.nanoseconds / _SECOND

    def __str__(self) -> str:
        """Return the duration as Go prints it: ``1h2m3.5s``, ``1.5ms``, ``0s``."""
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
    """The duration of ``logging.flushFrequency``, which may also be whole nanoseconds (component-base logs/api/v1)."""

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
    """Ports from `first` to `last`, both included. With 0 and 0 the kernel chooses."""

    NOTATION: ClassVar[str] = "PORTS"
    ALLOWED: ClassVar[str] = (
        "ports from 1 to 65535 as first-last (300-2000), first+count (300+10) or one port (300);"
        " empty for ports that the kernel chooses"
    )

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse kube-proxy's notation. As in kube-proxy, ``first+count`` ends at 65535 at most."""
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
    """One port or a range of ports, never empty."""

    __slots__ = ()
    ALLOWED = "ports from 1 to 65535: one (443), or first-last (30000-32767)"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the notation of a port range. Raise ValueError if the range is empty."""
        ports = super().parse(text)
        if not ports:
            raise ValueError(text)
        return ports

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """The number of workers. None lets the number of CPUs decide."""

    NOTATION: ClassVar[str] = "N|auto"
    ALLOWED: ClassVar[str] = "auto, or a number from 0 (everything in one process) to 64"
    MAX: ClassVar[int] = 64

    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number or ``auto``."""
        if text == "auto":
            return cls()
        if not (text.isascii() and text.isdecimal() and int(text) <= cls.MAX):
            raise ValueError(text)
        return cls(int(text))

    def __str__(self) -> str:
        return "auto" if self.number is None else str(self.number)


class IP(str):
    """An IP address in canonical form."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "IP"
    ALLOWED: ClassVar[str] = "an IP address, such as 0.0.0.0, 192.0.2.1 or ::"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse any form of an IPv4 or IPv6 address without zone."""
        return cls(parse_address(text))

    @property
    def address(self) -> Address:
        """Return the address as a type of the model."""
        return Address(str(self))

    @property
    def family(self) -> Family:
        """Return the address's family."""
        return family_of(self.address)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The IP address and port of an HTTP server. Port 0 means no server."""

    NOTATION: ClassVar[str] = "IP:PORT"
    ALLOWED: ClassVar[str] = (
        "an IP address with or without a port up to 65535, such as 127.0.0.1:{port} or [::1]:{port};"
        " port 0 for no server"
    )
    DEFAULT_PORT: ClassVar[int] = 0

    address: Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``IP:port``, ``[IPv6]:port``, or an address alone, which gets the default port."""
        if match := re.fullmatch(r"\[([^]]*)](?::(\d{1,5}))?|([^:]*)(?::(\d{1,5}))?", text, re.ASCII):
            address = parse_address(match[1] if match[1] is not None else match[3])
            if (family_of(address) is Family.IPV6) != (match[1] is not None):
                raise ValueError(text)
            digits = match[2] or match[4]
        else:
            address, digits = parse_address(text), None
        port = cls.DEFAULT_PORT if digits is None else int(digits)
        if port > 65535:
            raise ValueError(text)
        return cls(address, port)

    @property
    def served(self) -> bool:
        """Return whether there is a server."""
        return self.port != 0

    @property
    def loopback(self) -> Address:
        """Return the address at which this host reaches the server: its own if it is loopback, else a loopback
        address."""
        address = ipaddress.ip_address(self.address)
        if address.is_loopback:
            return self.address
        return Address("127.0.0.1" if address.version == 4 else "::1")

    @property
    def is_everywhere(self) -> bool:
        """Return whether the address is the unspecified one, which stands for all addresses of its family."""
        return ipaddress.ip_address(self.address).is_unspecified

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class HealthzAddress(ServerAddress):
    """The address of the health server."""

    __slots__ = ()
    ALLOWED = ServerAddress.ALLOWED.format(port=10256)
    DEFAULT_PORT = 10256


class MetricsAddress(ServerAddress):
    """The address of the metrics server."""

    __slots__ = ()
    ALLOWED = ServerAddress.ALLOWED.format(port=10249)
    DEFAULT_PORT = 10249


class CIDR(str):
    """An address block in canonical form, host bits cleared as Go's ParseCIDR does."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = "an address block, such as 10.100.0.0/16 or fde4:8dba:82e1::/48"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``address/bits``."""
        address, slash, bits = text.partition("/")
        if not slash or not (bits.isascii() and bits.isdecimal()):
            raise ValueError(text)
        return cls(ipaddress.ip_network(f"{parse_address(address)}/{int(bits)}", strict=False))


class ClusterCIDR(str):
    """The pods' address block, or one per family separated by a comma. Empty if it is not known."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "CIDR"
    ALLOWED: ClassVar[str] = (
        "an address block or one of each family, such as 10.100.0.0/16 or 10.100.0.0/16,fde4:8dba:82e1::/48"
    )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one block, two, or an empty text."""
        if not text:
            return cls("")
        blocks = [CIDR.parse(part.strip()) for part in text.split(",")]
        if len(blocks) > 2 or (len(blocks) == 2 and (":" in blocks[0]) == (":" in blocks[1])):
            raise ValueError(text)
        return cls(",".join(blocks))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return one block, or one per family."""
        return tuple(self.split(",")) if self else ()


class _CIDROrWord(str):
    """An address block, or one of some words."""

    __slots__ = ()
    WORDS: ClassVar[tuple[str, ...]]
    NOTATION: ClassVar[str] = "CIDR"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a block or a word."""
        return cls(text if text in cls.WORDS else CIDR.parse(text))


class NodePortAddress(_CIDROrWord):
    """Node addresses for node ports: an address block, or one of kube-proxy's words."""

    __slots__ = ()
    WORDS = ("primary", "localhost", "all")
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or one of {', '.join(WORDS)}"


class DeniedEndpoints(_CIDROrWord):
    """Denied endpoints: an address block, or the word for this node's own addresses."""

    __slots__ = ()
    NODE: ClassVar[str] = "node"
    WORDS = (NODE,)
    ALLOWED: ClassVar[str] = f"an address block, such as 192.0.2.0/24, or the word {NODE}"


class _MatchedText(str):
    """A text that matches a pattern, and stays as it is."""

    __slots__ = ()
    PATTERN: ClassVar[re.Pattern[str]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text that matches as a whole."""
        if not cls.PATTERN.fullmatch(text):
            raise ValueError(text)
        return cls(text)


class LabelValue(_MatchedText):
    """A label's value, such as a zone's name; empty for none."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "NAME"
    ALLOWED: ClassVar[str] = "at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    PATTERN = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class Quantity(_MatchedText):
    """A Kubernetes resource quantity, as written: ``0``, ``64Ki``, ``1.5M``."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "QUANTITY"
    ALLOWED: ClassVar[str] = "a quantity, such as 0, 65536 or 64Ki"
    PATTERN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)


class Namespace(_MatchedText):
    """A namespace's name, an RFC 1123 label; empty for none."""

    __slots__ = ()
    NOTATION: ClassVar[str] = "NAME"
    ALLOWED: ClassVar[str] = (
        "a namespace: at most 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
    )
    PATTERN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)?")
