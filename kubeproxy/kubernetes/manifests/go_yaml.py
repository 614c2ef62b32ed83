"""Reads YAML as kubectl does, which is YAML 1.1 with the rules of Go's yaml.v2 (sigs.k8s.io/yaml) for plain scalars.

``no`` and ``off`` are false, ``y`` is true, ``017`` and ``0x1f`` are integers, and a date is a string. Keys are
converted to strings. So a document has the same meaning here and in kubectl.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from typing import Any, Final

from kubeproxy.kubernetes.manifests.parse import TAG, Composer, refusal

_CONSTANTS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_NUMBER_BEGINS: Final = frozenset("+-.0123456789")
_DECIMAL: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASES: Final = {"0x": 16, "0X": 16, "0o": 8, "0O": 8, "0b": 2, "0B": 2}
_TAGGED: Final = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}
_INT64: Final = 1 << 63
_LONGEST_NUMBER: Final = 400
"""The maximum length of a number, in characters. A longer number is read as a string, because Python refuses to convert
thousands of digits."""


class GoComposer(Composer):
    """Reads documents as kubectl does, and notes keys that occur twice in a mapping. The last value of such a key
    counts."""

    def __init__(self, next_event: Callable[[], Any]) -> None:
        super().__init__(next_event)
        self.scalar = self._scalar
        self.key = self._key
        self.duplicates: list[tuple[int, str]] = []
        """The repeated keys, each with its line, counted from 0."""

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        plain, quoted = event.implicit
        if plain:
            value = resolve(text)
            if isinstance(value, float) and not math.isfinite(value):
                raise refusal(event, f"the number {text}, which JSON cannot hold")
            return value
        if quoted:
            return text
        return self._tagged(event, text)

    def _key(self, event: Any) -> str:
        value = self._scalar(event)
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None:
            raise refusal(event, "a key that is null")
        return str(normalized(value))

    def repeated(self, event: Any, key: str) -> None:
        self.duplicates.append((event.start_mark.line, key))

    def collection(self, event: Any) -> None:
        """Ignore the tags of mappings and lists, as kubectl does."""

    def _tagged(self, event: Any, text: str) -> object:
        tag = event.tag or ""
        value = resolve(text)
        match tag.removeprefix(TAG):
            case "binary":
                try:
                    return base64.b64decode(text).decode("utf-8", "replace")
                except (binascii.Error, ValueError):
                    raise refusal(event, "!!binary value that is not base64") from None
            case "int" | "float" | "bool" | "null" as kind:
                if type(value) not in _TAGGED[kind]:
                    raise refusal(event, f"!!{kind} value that is none")
                return value
            case _:
                return text


def resolve(text: str) -> object:
    """Return the value of a plain scalar, which may be a string."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_BEGINS or len(text) > _LONGEST_NUMBER:
        return text
    if _DECIMAL.fullmatch(text):
        return int(text)
    number = _integer(text.replace("_", ""))
    if number is not None:
        return normalized(number)
    if _FLOAT.fullmatch(plain := text.replace("_", "")):
        return normalized(float(plain))
    return text


def _integer(text: str) -> int | None:
    """Parse an integer as Go's strconv.ParseInt(text, 0, 64) does, with a prefix for the base, or a leading zero for
    octal. Return None for any other text."""
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if not digits or not digits.isascii() or not digits.isalnum():
        return None
    base = _BASES.get(digits[:2])
    try:
        if base is not None:
            return sign * int(digits[2:], base)
        if len(digits) > 1 and digits[0] == "0":
            return sign * int(digits[1:], 8)
        return sign * int(digits) if digits.isdecimal() else None
    except ValueError:
        return None


def normalized(value: object) -> object:
    """Convert a number as kubectl does: return an integer if it is whole and within 64 bits, and otherwise a float.
    Return other values unchanged."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _INT64:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        return float(value)
    return value
