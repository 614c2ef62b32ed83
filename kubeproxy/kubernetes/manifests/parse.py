"""Parses YAML and JSON texts into values, which are decoded to types on demand.

It is safe for untrusted texts: it refuses a text that is nested too deeply, or whose aliases expand it too much.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import yaml

from kubeproxy.kubernetes.invalid_field import Fault

T = TypeVar("T")

MAX_DEPTH = 100
"""The maximum nesting depth of a YAML document."""
MAX_EXPANSION = 10
"""The largest factor by which aliases may expand a YAML document with more than `FREE_EXPANSION` values."""
FREE_EXPANSION = 100_000
"""The number of values up to which aliases may always expand a YAML document."""


class ManifestSyntaxError(Exception):
    """Raised if a text is neither YAML nor JSON. It has the line and the reason."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(f"line {line}", message)


class Value(Protocol):
    """A parsed value."""

    @property
    def null(self) -> bool:
        """Return whether the value is null."""

    def to(self, kind: type[T]) -> T:
        """Decode the value to a type. Raise msgspec.MsgspecError if it does not match the type."""

    def fields(self) -> dict[str, Value]:
        """Return the values of a mapping by key, undecoded."""

    def elements(self) -> list[Value]:
        """Return the elements of a list, undecoded."""


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value of a JSON text, kept as JSON until it is decoded."""

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
    """A value of a YAML text, kept as plain Python data."""

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
    """Return whether a text begins like JSON. It may still be YAML in braces."""
    return _BRACE.match(text) is not None


def parse(text: bytes, line: int) -> list[Value]:
    """Parse a document, whose first line has the number `line`. Raise ManifestSyntaxError if it is invalid.

    There are several values if the text contains several YAML documents, separated by end marks.
    """
    decoded = text_of(text, line)
    if is_json(text):
        try:
            msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            return [JsonValue(text)]
        except (msgspec.MsgspecError, RecursionError):
            pass  # It may be YAML in braces, and the YAML parser's errors have line numbers.
    return [YamlValue(value) for value in compose_yaml(decoded, line)]


def text_of(data: bytes, line: int) -> str:
    """Decode UTF-8. Raise ManifestSyntaxError if the bytes are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        raise ManifestSyntaxError(at, f"byte {data[error.start]:#04x} is not UTF-8") from None


def compose_yaml(text: str, line: int, composer: Callable[[Callable[[], Any]], Composer] | None = None) -> list[object]:
    """Return the value of each YAML document in a text. `composer` makes the composer, by default a `Composer`. Raise
    ManifestSyntaxError if the text is invalid."""
    parser = None
    try:
        parser = yaml.CSafeLoader(text)
        return (composer or Composer)(parser.get_event).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "not YAML"
        last = text.rstrip().count("\n")  # The parser reports an error at the end on the following line.
        at = min(mark.line if mark else 0, last)
        raise ManifestSyntaxError(*(likely_cause(text, line, at) or (line + at, what))) from None
    except yaml.reader.ReaderError as error:
        raise ManifestSyntaxError(line + text.count("\n", 0, error.position), error.reason) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestSyntaxError(line, (str(error) or "not YAML").splitlines()[0]) from None
    except RecursionError:
        raise ManifestSyntaxError(line, "nested too deeply") from None
    finally:
        if parser is not None:
            parser.dispose()


_SHOWN = 80
"""The number of characters of a template that a message shows."""
_INDENT = re.compile(r"[ ]*\t")


def likely_cause(text: str, line: int, at: int) -> tuple[int, str] | None:
    """Find a better explanation of a syntax error than the YAML parser's. `at` is the error's line in the text, counted
    from 0, and `line` the number of the first line.

    Return the line and the cause, or None if no cause is found.
    """
    lines = text.splitlines()
    for number in (at, at - 1):
        if 0 <= number < len(lines) and _INDENT.match(lines[number]):
            return line + number, "a tab; YAML indents with spaces"
    for number, content in enumerate(lines[: at + 1]):
        template = _template(content)
        if template and not content.lstrip().startswith("#"):
            return line + number, f"{template!r} looks like a template that is not rendered"
    return None


def _template(line: str) -> str:
    """Return the text in double braces, shortened, or an empty text."""
    begin = line.find("{{")
    end = line.rfind("}}", begin + 2)
    return "" if begin < 0 or end < 0 else line[begin : min(end + 2, begin + _SHOWN)]


TAG = "tag:yaml.org,2002:"
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


class Composer:
    """Builds plain data from a parser's events.

    PyYAML's constructors take three times as long, use thirty times the text's memory, and recurse on the C stack.
    Plain scalars are read as in YAML 1.2: as null, true, false or decimal numbers, and otherwise as strings, so ``no``,
    ``22:22`` and dates are strings. A subclass can read scalars, keys and repeated keys differently.
    """

    scalar: Callable[[Any], object]
    """A function that returns the value of a scalar event."""
    key: Callable[[Any], str] | None = None
    """A function that returns the string for the scalar event of a key, or None if the text is used unchanged."""

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self.scalar = scalar
        self._next = next_event
        self._anchors: dict[str, tuple[object, int]] = {}
        """The value of each anchor, and the number of values in it, by the anchor's name."""
        self._written = 0
        self._expanded = 0

    def documents(self) -> list[object]:
        """Return the value of each document of the text."""
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
            value = self.scalar(event)
        else:
            if depth == MAX_DEPTH:
                raise refusal(event, f"nested deeper than {MAX_DEPTH} levels")
            self.collection(event)
            value = self._mapping(depth + 1) if kind is yaml.MappingStartEvent else self._sequence(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._expanded - before + 1
        return value

    def _alias(self, event: Any) -> object:
        """Return the anchor's value itself, not a copy. Its size counts for each alias, because the decoder reads it
        each time."""
        if event.anchor not in self._anchors:
            raise refusal(event, f"no anchor {event.anchor!r} before this alias")
        value, size = self._anchors[event.anchor]
        self._expanded += size
        if self._expanded > FREE_EXPANSION + MAX_EXPANSION * self._written:
            raise refusal(event, f"aliases expand {self._written} values to {self._expanded} or more")
        return value

    def _sequence(self, depth: int) -> list[object]:
        following, scalar_of, plain = self._next, self.scalar, 0
        values: list[object] = []
        while (event := following()).__class__ is not _SequenceEnd:
            if event.__class__ is _Scalar and event.anchor is None:
                plain += 1
                values.append(scalar_of(event))
            else:
                values.append(self._value(event, depth))
        self._count(plain)
        return values

    def _mapping(self, depth: int) -> dict[str, object]:
        following, scalar_of, key_of, plain = self._next, self.scalar, self.key, 0
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        while (event := following()).__class__ is not _MappingEnd:
            is_scalar = event.__class__ is _Scalar
            key = event.value if is_scalar else self._value(event, depth)
            if key_of is not None and is_scalar:
                key = key_of(event)
            if not isinstance(key, str):
                raise refusal(event, "a key that is not a text")
            if is_scalar and event.anchor is not None:
                self._anchors[event.anchor] = key, 1
            content = following()
            if content.__class__ is _Scalar and content.anchor is None:
                plain += 1
                value = scalar_of(content)
            else:
                value = self._value(content, depth)
            if key == _MERGE and is_scalar and event.implicit[0]:
                for part in value if isinstance(value, list) else [value]:
                    if not isinstance(part, dict):
                        raise refusal(event, "only mappings can be merged")
                    merged = part | merged
            elif key in found:
                self.repeated(event, key)
                found[key] = value
            else:
                found[key] = value
        self._count(plain)
        return merged | found if merged else found

    def _count(self, plain: int) -> None:
        """Count a number of scalars without anchors, which are the largest part of a manifest."""
        self._written += plain
        self._expanded += plain

    # Methods for subclasses to override

    def repeated(self, event: Any, key: str) -> None:
        """Handle a key that occurs twice in a mapping. The later value counts, unless this method raises."""
        raise refusal(event, f"duplicate key {key!r}")

    def collection(self, event: Any) -> None:
        """Handle the beginning of a mapping or a list. Raise an error if it has an unsupported tag."""
        if event.tag not in (None, "!", f"{TAG}map", f"{TAG}seq"):
            raise refusal(event, f"tag {event.tag!r} is not supported")


def scalar(event: Any) -> object:
    """Return the value of a scalar by the rules of YAML 1.2."""
    text: str = event.value
    plain, quoted = event.implicit
    if plain:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        return int(text) if text[0] in _INTEGER_BEGINS and _INTEGER.fullmatch(text) else text
    if quoted or event.tag in ("!", f"{TAG}str"):
        return text
    raise refusal(event, f"tag {event.tag!r} is not supported")


def refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    """Return an error at the position of an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
