"""Checks objects against a server's schemas: finds unknown fields, missing fields and wrong types.

This is needed for servers before 1.27, which do not check fields, and for objects that are not sent to a server. The
messages are kubectl's. Values are checked only by the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kubeproxy.kubernetes.resource_builder.openapi import Schema, Schemas, resolved

MOST: Final = 20
"""The largest number of reported faults of one object."""
_MAX_DEPTH: Final = 100
_SHOWN_DEPTH: Final = 12
"""The largest number of path parts that a message shows."""
_SAME: Final = {"integer": ("integer", "number"), "number": ("integer", "number")}


class Fault(NamedTuple):
    """A field that a server would refuse."""

    message: str
    path: tuple[str | int, ...]


def validate(data: dict[str, Any], schemas: Schemas) -> list[Fault]:
    """Return at most `MOST` faults of an object. Return an empty list if the server has no schema for its kind."""
    group, _, version = str(data.get("apiVersion") or "").rpartition("/")
    kind = str(data.get("kind") or "")
    found = schemas.of(group, version, kind)
    if found is None:
        return []
    name, schema = found
    faults = _Validator(schemas, kind).check(data, schema, name, (), 0)
    return [fault for fault, _ in zip(faults, range(MOST), strict=False)]


class _Validator:
    def __init__(self, schemas: Schemas, kind: str) -> None:
        self._definitions = schemas.definitions
        self._kind = kind

    def check(
        self, value: object, schema: Schema, name: str, path: tuple[str | int, ...], depth: int
    ) -> Iterator[Fault]:
        if value is None or depth > _MAX_DEPTH:
            return
        schema, definition = resolved(schema, self._definitions)
        name = definition or name
        if schema.int_or_string and isinstance(value, str | int):
            return
        if schema.fields is not None:
            yield from self._object(value, schema, name, path, depth)
        elif schema.values is not None:
            if not isinstance(value, dict):
                yield self._mismatch(value, "map", name, path)
                return
            for key, inner in value.items():
                yield from self.check(inner, schema.values, f"{name}.{key}", (*path, key), depth + 1)
        elif schema.type == "array":
            if not isinstance(value, list):
                yield self._mismatch(value, "array", name, path)
                return
            for index, inner in enumerate(value):
                yield from self.check(inner, schema.items or Schema(), name, (*path, index), depth + 1)
        elif schema.type in ("integer", "number", "boolean"):
            if _type(value) not in _SAME.get(schema.type, (schema.type,)):
                yield self._mismatch(value, schema.type, name, path)
        elif schema.type == "string" and isinstance(value, dict | list):
            yield self._mismatch(value, "string", name, path)

    def _object(
        self, value: object, schema: Schema, name: str, path: tuple[str | int, ...], depth: int
    ) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield self._mismatch(value, "map", name, path)
            return
        fields = schema.fields or {}
        for key, inner in value.items():
            if key in fields:
                yield from self.check(inner, fields[key], f"{name}.{key}", (*path, key), depth + 1)
            elif not schema.open:
                message = f'ValidationError({self._place(path)}): unknown field "{_short(key)}" in {_short(name)}'
                yield Fault(message, (*path, key))
        for key in schema.required:
            if key not in value:
                yield Fault(
                    f'ValidationError({self._place(path)}): missing required field "{_short(key)}" in {_short(name)}',
                    path,
                )

    def _mismatch(self, value: object, expected: str, name: str, path: tuple[str | int, ...]) -> Fault:
        found = _type(value)
        what = f'invalid type for {_short(name)}: got "{found}", expected "{expected}"'
        return Fault(f"ValidationError({self._place(path)}): {what}", path)

    def _place(self, path: tuple[str | int, ...]) -> str:
        return _short(self._kind) + "".join(
            f"[{part}]" if isinstance(part, int) else f".{_short(part)}" for part in path[:_SHOWN_DEPTH]
        )


def _type(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "map"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}..."
