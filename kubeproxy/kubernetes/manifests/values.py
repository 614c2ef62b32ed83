"""Parses YAML and JSON texts into values that are decoded on demand. Pure.

Safe for untrusted texts: a text that is nested too deeply, or expands too much by its aliases, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import yaml

from kubeproxy.kubernetes.fault import Fault

T = TypeVar("T")

MAX_DEPTH = 100
"""The deepest nesting of a YAML document."""
MAX_EXPANSION = 10
"""The largest growth of a YAML document by its aliases, as a factor, beyond `FREE_EXPANSION`."""
FREE_EXPANSION = 100_000
"""Number of YAML values to which aliases may always expand."""


class SyntaxFault(Exception):
    """The text is neither YAML nor JSON; with the line and the reason."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(f"line {line}", message)


class Value(Protocol):
    """A parsed value."""

    @property
    def null(self) -> bool:
        """Whether the value is null."""

    def to(self, kind: type[T]) -> T:
        """Decode; msgspec.MsgspecError if the types do not fit."""

    def fields(self) -> dict[str, Value]:
        """The values of a mapping by key."""

    def elements(self) -> list[Value]:
        """The elements of a list."""


@dataclass(frozen=True, slots=True)
class JsonValue:
    """An undecoded value of a JSON text."""

    raw: msgspec.Raw | bytes

    @property
    def null(self) -> bool:
        return bytes(memoryview(self.raw)[:4]) == b"null"

    def to(self, kind: type[T]) -> T:
        return msgspec.json.decode(self.raw, type=kind)

    def fields(self) -> dict[str, Value]:
        return {key: JsonValue(raw) for key, raw in self.to(dict[str, msgspec.Raw]).items()}

    def elements(self) -> list[Value]:
        return [JsonValue(raw) for raw in self.to(list[msgspec.Raw])]


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value of a YAML text, as plain Python data."""

    value: object

    @property
    def null(self) -> bool:
        return self.value is None

    def to(self, kind: type[T]) -> T:
        return msgspec.convert(self.value, kind)

    def fields(self) -> dict[str, Value]:
        return {key: YamlValue(value) for key, value in self.to(dict[str, Any]).items()}

    def elements(self) -> list[Value]:
        return [YamlValue(value) for value in self.to(list[Any])]


_BRACE = re.compile(rb"\s*\{")


def is_json(text: bytes) -> bool:
    """Whether this looks like JSON; it may still be YAML in braces."""
    return _BRACE.match(text) is not None


def parse(text: bytes, line: int) -> list[Value]:
    """One document's value; several if YAML's end mark divides it further. `line` is the number of its first line.
    Raises SyntaxFault."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        at = line + text.count(b"\n", 0, error.start)
        raise SyntaxFault(at, f"byte {text[error.start]:#04x} is not UTF-8") from None
    if is_json(text):
        try:
            msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            return [JsonValue(text)]
        except (msgspec.MsgspecError, RecursionError):
            pass  # YAML has mappings in braces, too, and its errors have a line number
    try:
        return [YamlValue(value) for value in _load_yaml(decoded)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "not YAML"
        last = text.rstrip().count(b"\n")  # an error at the end is reported on the line after it
        raise SyntaxFault(line + min(mark.line if mark else 0, last), what) from None
    except yaml.reader.ReaderError as error:
        raise SyntaxFault(line + text.count(b"\n", 0, error.position), error.reason) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SyntaxFault(line, (str(error) or "not YAML").splitlines()[0]) from None
    except RecursionError:
        raise SyntaxFault(line, "nested too deeply") from None


def _load_yaml(text: str) -> list[object]:
    parser = yaml.CSafeLoader(text)
    try:
        return _Builder(parser.get_event).documents()
    finally:
        parser.dispose()


_TAG = "tag:yaml.org,2002:"
_CONSTANTS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_INTEGER_BEGINS = frozenset("-+0123456789")
_MERGE = "<<"
_Scalar = yaml.ScalarEvent
_MappingEnd = yaml.MappingEndEvent
_SequenceEnd = yaml.SequenceEndEvent


class _Builder:
    """Builds plain data from a parser's events.

    PyYAML's own way, by nodes and then generators, takes three times as long, thirty times the text's memory, and the C
    stack. Plain scalars are read as in YAML 1.2: null, true, false and decimal numbers; the rest is text, so that
    ``no``, ``22:22`` and dates stay as written.
    """

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self._next = next_event
        self._anchors: dict[str, tuple[object, int]] = {}
        """By name: a value, and the number of values in it."""
        self._written = 0
        self._expanded = 0

    def documents(self) -> list[object]:
        """The value of every document of the text."""
        values = []
        self._next()
        while not isinstance(self._next(), yaml.StreamEndEvent):
            self._anchors.clear()
            values.append(self._value(self._next(), 0))
            self._next()
        return values

    def _value(self, event: Any, depth: int) -> object:
        kind = event.__class__
        if kind is yaml.AliasEvent:
            return self._alias(event)
        self._written += 1
        self._expanded += 1
        before = self._expanded
        value: object
        if kind is _Scalar:
            value = _scalar(event)
        else:
            if depth == MAX_DEPTH:
                raise _refusal(event, f"nested deeper than {MAX_DEPTH} levels")
            if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
                raise _refusal(event, f"tag {event.tag!r} is not supported")
            value = self._mapping(depth + 1) if kind is yaml.MappingStartEvent else self._sequence(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._expanded - before + 1
        return value

    def _alias(self, event: Any) -> object:
        """The value itself, not a copy. It counts each time, because the decoder reads it each time."""
        if event.anchor not in self._anchors:
            raise _refusal(event, f"no anchor {event.anchor!r} before this alias")
        value, size = self._anchors[event.anchor]
        self._expanded += size
        if self._expanded > FREE_EXPANSION + MAX_EXPANSION * self._written:
            raise _refusal(event, f"aliases expand {self._written} values to {self._expanded} or more")
        return value

    def _sequence(self, depth: int) -> list[object]:
        following, plain = self._next, 0
        values: list[object] = []
        while (event := following()).__class__ is not _SequenceEnd:
            if event.__class__ is _Scalar and event.anchor is None:
                plain += 1
                values.append(_scalar(event))
            else:
                values.append(self._value(event, depth))
        self._count(plain)
        return values

    def _mapping(self, depth: int) -> dict[str, object]:
        following, plain = self._next, 0
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        while (event := following()).__class__ is not _MappingEnd:
            scalar = event.__class__ is _Scalar
            key = event.value if scalar else self._value(event, depth)
            if not isinstance(key, str):
                raise _refusal(event, "a key that is not a text")
            if scalar and event.anchor is not None:
                self._anchors[event.anchor] = key, 1
            content = following()
            if content.__class__ is _Scalar and content.anchor is None:
                plain += 1
                value = _scalar(content)
            else:
                value = self._value(content, depth)
            if key == _MERGE and scalar and event.implicit[0]:
                for part in value if isinstance(value, list) else [value]:
                    if not isinstance(part, dict):
                        raise _refusal(event, "only mappings can be merged")
                    merged = part | merged
            elif key in found:
                raise _refusal(event, f"duplicate key {key!r}")
            else:
                found[key] = value
        self._count(plain)
        return merged | found if merged else found

    def _count(self, plain: int) -> None:
        """Count scalars without an anchor together, because most of a manifest consists of them."""
        self._written += plain
        self._expanded += plain


def _scalar(event: Any) -> object:
    text: str = event.value
    plain, quoted = event.implicit
    if plain:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        return int(text) if text[0] in _INTEGER_BEGINS and _INTEGER.fullmatch(text) else text
    if quoted or event.tag in ("!", f"{_TAG}str"):
        return text
    raise _refusal(event, f"tag {event.tag!r} is not supported")


def _refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
