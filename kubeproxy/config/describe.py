"""Describes types and values as text, for messages, help and the configuration reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

from kubeproxy.config.fields import members, plain
from kubeproxy.config.value_types import Leaf
from kubeproxy.model.printable import printable

_MAX_SHOWN: Final = 60


def allowed(kind: inspect.Type) -> str:
    """Describe the values that a type allows."""
    kind = plain(kind)
    match kind:
        case inspect.VarTupleType():
            least = f" of at least {kind.min_length}" if kind.min_length else ""
            return f"a list{least}: {allowed(kind.item_type)}"
        case inspect.DictType():
            return f"a map of names to {allowed(kind.value_type)}"
        case inspect.StructType():
            return f"a map of {', '.join(members(kind.cls))}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case inspect.LiteralType():
            return _either([value or "empty" for value in kind.values if isinstance(value, str)])
        case inspect.CustomType() | inspect.DataclassType():
            return leaf(kind).ALLOWED
        case _:
            return "text"


def notation(kind: inspect.Type) -> str:
    """Return the placeholder in help for a value of a type, such as ``DURATION``."""
    kind = plain(kind)
    match kind:
        case inspect.BoolType():
            return "true|false"
        case inspect.IntType() | inspect.FloatType():
            return "N"
        case inspect.LiteralType():
            return "|".join(str(value) for value in kind.values if value)
        case inspect.VarTupleType():
            return notation(kind.item_type) + ("" if isinstance(plain(kind.item_type), inspect.StrType) else ",…")
        case inspect.DictType():
            return f"NAME={notation(kind.value_type)},…"
        case inspect.StructType():
            return "=".join(notation(member.type) for member in members(kind.cls).values())
        case inspect.CustomType() | inspect.DataclassType():
            return leaf(kind).NOTATION
        case _:
            return "TEXT"


def text_of(value: Any) -> str:
    """Format a value in the way in which its flag accepts it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(text_of(item) for item in value)
        case dict():
            return ",".join(f"{key}={text_of(item)}" for key, item in value.items())
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def describe(value: object) -> str:
    """Describe a found value in a few words, on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case float():
            return repr(value)
        case int():
            return str(value) if abs(value) < 10**_MAX_SHOWN else "a very large number"
        case str():
            return _quote(value)
        case Mapping():
            return "a map"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return f"a {type(value).__name__}"


def name_of(name: object) -> str:
    """Format a key of a map as text on one line."""
    return name if isinstance(name, str) and name.isprintable() and len(name) <= _MAX_SHOWN else describe(name)


def leaf(kind: inspect.CustomType | inspect.DataclassType) -> type[Leaf]:
    """Return the class of a type that has a notation of its own (see `value_types`)."""
    found: type[Leaf] = kind.cls
    return found


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    match kind.ge, kind.le:
        case None, None:
            return ""
        case least, None:
            return f", {least} or more"
        case None, most:
            return f", {most} or less"
        case least, most:
            return f" from {least} to {most}"


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _quote(text: str) -> str:
    """Quote a text in double quotes, shortened, with unprintable characters escaped."""
    quoted = json.dumps(text[:_MAX_SHOWN], ensure_ascii=False)
    line = printable(quoted)
    return line if len(text) <= _MAX_SHOWN else f"{line}…"
