"""Converts plain data of a configuration file, or texts of flags, to typed values, and reports all faults at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct, inspect

from kubeproxy.config.describe import allowed, describe, leaf, name_of, notation
from kubeproxy.config.fields import members, plain

_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
_FALSE: Final = ("0", "f", "F", "false", "FALSE", "False")
"""The texts for false. Texts for true and false are those of Go's strconv.ParseBool, which kube-proxy's flags use."""


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The faults and warnings of a configuration, as lines of text."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def fault(self, path: str, found: str, allowed: str) -> None:
        """Add a fault of a field, with its path, the value found and the values allowed."""
        self.faults.append(f"{path}: found {found}; allowed: {allowed}")

    def unknown(self, path: str, name: object, known: Iterable[str]) -> None:
        """Add a warning about an unknown field, which suggests the most similar known name. Like kube-proxy, ignore
        such fields."""
        near = get_close_matches(name_of(name), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.warnings.append(f"{path}: unknown field, ignored{hint}")


def convert(kind: inspect.Type, value: Any, path: str, diagnostics: Diagnostics) -> Any:
    """Convert plain data to a value of a type. If that is impossible, add a fault and return None."""
    kind = plain(kind)
    match kind:
        case inspect.VarTupleType():
            return _convert_list(kind, value, path, diagnostics)
        case inspect.DictType():
            if isinstance(value, Mapping):
                return {
                    key if isinstance(key, str) else name_of(key): convert(
                        kind.value_type, item, join(path, key), diagnostics
                    )
                    for key, item in value.items()
                }
        case inspect.StructType():
            if isinstance(value, Mapping):
                return _convert_group(kind.cls, value, path, diagnostics)
        case inspect.BoolType():
            if isinstance(value, bool):
                return value
        case inspect.IntType():
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if _is_number(value) and isinstance(value, int) and _in_range(kind, value):
                return value
        case inspect.FloatType():
            if _is_number(value) and _in_range(kind, value):
                return float(value)
        case inspect.StrType():
            if isinstance(value, str):
                return value
        case inspect.LiteralType():
            if isinstance(value, str) and value in kind.values:
                return value
        case inspect.CustomType() | inspect.DataclassType():
            if isinstance(value, str) or (_is_number(value) and isinstance(value, int)):
                try:
                    return leaf(kind).parse(str(value))
                except ValueError:
                    pass  # Fall through to the fault below.
    hint = " (put it in quotes)" if isinstance(kind, inspect.StrType) and isinstance(value, (bool, int, float)) else ""
    diagnostics.fault(path, describe(value), allowed(kind) + hint)
    return None


def convert_flag(kind: inspect.Type, texts: list[str], flag: str, diagnostics: Diagnostics) -> Any:
    """Convert the texts of a flag to a value of a type. Of a flag with a single value, the last text counts. If that is
    impossible, add a fault and return None."""
    match kind:
        case inspect.VarTupleType(item_type=item):
            # Split at commas, except plain strings, because paths may contain commas.
            parts = texts if isinstance(plain(item), inspect.StrType) else _split(texts)
            if isinstance(plain(item), inspect.StructType):
                return _convert_list(kind, [_pair(item, part, flag, diagnostics) for part in parts], flag, diagnostics)
            return _convert_list(kind, parts, flag, diagnostics)
        case inspect.DictType():
            pairs = {}
            for part in _split(texts):
                key, equals, value = part.partition("=")
                if not (equals and key):
                    diagnostics.fault(flag, describe(part), notation(kind))
                    continue
                pairs[key] = _scalar(kind.value_type, value)
            return convert(kind, pairs, flag, diagnostics)
        case _:
            return convert(kind, _scalar(kind, texts[-1]), flag, diagnostics)


def join(path: str, name: object) -> str:
    """Return the path of a member of a group or a map."""
    return f"{path}.{name_of(name)}" if path else name_of(name)


def is_zero(value: object) -> bool:
    """Return whether a value is the zero value of its type in Go, in any notation."""
    return value is None or value in ("", "0", "0s") or (_is_number(value) and value == 0)


def _convert_list(kind: inspect.VarTupleType, value: Any, path: str, diagnostics: Diagnostics) -> Any:
    if value is None:
        value = []
    if not isinstance(value, list) or len(value) < (kind.min_length or 0):
        diagnostics.fault(path, describe(value), allowed(kind))
        return None
    return tuple(convert(kind.item_type, item, f"{path}[{place}]", diagnostics) for place, item in enumerate(value))


def _convert_group(group: type[Struct], value: Mapping[Any, Any], path: str, diagnostics: Diagnostics) -> Any:
    known = members(group)
    for name in value:
        if name not in known:
            diagnostics.unknown(join(path, name), name, known)
    return group(
        **{
            member.name: convert(member.type, value[name], f"{path}.{name}", diagnostics)
            for name, member in known.items()
            if value.get(name) is not None
        }
    )


def _scalar(kind: inspect.Type, text: str) -> Any:
    """Convert the text of a flag to data as in a file. Return a text that does not match the type unchanged; `convert`
    then adds the fault."""
    kind = plain(kind)
    match kind:
        case inspect.BoolType():
            return True if text in _TRUE else False if text in _FALSE else text
        case inspect.IntType() | inspect.FloatType():
            try:
                return int(text) if isinstance(kind, inspect.IntType) else float(text)
            except ValueError:
                return text
        case _:
            return text


def _pair(group: inspect.Type, text: str, flag: str, diagnostics: Diagnostics) -> dict[str, Any]:
    """Split a text such as ``pattern=N`` into the two members of a group."""
    described = plain(group)
    assert isinstance(described, inspect.StructType)
    (first, _), (second, member) = members(described.cls).items()
    key, equals, value = text.partition("=")
    if not (equals and key):
        diagnostics.fault(flag, describe(text), f"{first}={second}")
        return {}
    return {first: key, second: _scalar(member.type, value)}


def _split(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _in_range(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)
