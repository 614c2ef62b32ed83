"""Reads the schemas of a server's kinds from its OpenAPI document, and caches an extract on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import GarbageError
from kubeproxy.kubernetes.resource_builder.discovery import FORMAT, UNDECODABLE, file_name, write_file

TTL_S: Final = 3600.0
_REF: Final = "#/definitions/"


class Schema(msgspec.Struct, omit_defaults=True):
    """A schema of values. By default, any value is allowed."""

    type: str = ""
    """``object``, ``array``, ``string``, ``integer``, ``number`` or ``boolean``, or empty for any type."""
    ref: str = ""
    """The name of the definition that this schema refers to, or empty."""
    fields: dict[str, Schema] | None = None
    """The schemas of an object's fields, by name."""
    values: Schema | None = None
    """The schema of the values in a mapping with arbitrary keys."""
    items: Schema | None = None
    required: tuple[str, ...] = ()
    open: bool = False
    """Whether the server keeps fields that are not listed."""
    int_or_string: bool = False


class Schemas(msgspec.Struct):
    """All definitions of a server, and the definition of each kind."""

    definitions: dict[str, Schema] = {}
    kinds: dict[str, str] = {}
    """The name of the definition by ``GROUP/VERSION/KIND``."""

    def of(self, group: str, version: str, kind: str) -> tuple[str, Schema] | None:
        """Return the name of a kind's definition, and the definition, or None if the server has none."""
        name = self.kinds.get(f"{group}/{version}/{kind}")
        schema = self.definitions.get(name or "")
        return (name, schema) if name and schema is not None else None


def parse(body: bytes) -> Schemas:
    """Parse an OpenAPI v2 document. Raise `GarbageError` if it is not one."""
    try:
        document = msgspec.json.decode(body, type=_Document)
    except UNDECODABLE as error:
        raise GarbageError(f"/openapi/v2 answered what is none: {error}", cause="garbage") from None
    schemas = Schemas({}, {})
    for name, definition in (document.definitions or {}).items():
        try:
            schemas.definitions[name] = _schema(definition, depth=0)
        except RecursionError:
            continue
        marks = definition.get("x-kubernetes-group-version-kind")
        for mark in marks if isinstance(marks, list) else []:
            if isinstance(mark, dict):
                group, version, kind = (str(mark.get(key) or "") for key in ("group", "version", "kind"))
                schemas.kinds[f"{group}/{version}/{kind}"] = name
    return schemas


class _Document(msgspec.Struct):
    definitions: dict[str, dict[str, Any]] | None = None


_MAX_DEPTH: Final = 100


def _schema(found: Any, depth: int) -> Schema:
    if not isinstance(found, dict) or depth > _MAX_DEPTH:
        return Schema()
    ref = found.get("$ref")
    if isinstance(ref, str):
        return Schema(ref=ref.removeprefix(_REF))
    schema = Schema()
    kind = found.get("type")
    schema.type = kind if isinstance(kind, str) else ""
    schema.open = bool(found.get("x-kubernetes-preserve-unknown-fields"))
    schema.int_or_string = found.get("format") == "int-or-string" or bool(found.get("x-kubernetes-int-or-string"))
    fields = found.get("properties")
    if isinstance(fields, dict):
        schema.type = "object"
        schema.fields = {str(key): _schema(value, depth + 1) for key, value in fields.items()}
    values = found.get("additionalProperties")
    if isinstance(values, dict):
        schema.values = _schema(values, depth + 1)
    items = found.get("items")
    if isinstance(items, dict):
        schema.items = _schema(items, depth + 1)
    required = found.get("required")
    if isinstance(required, list):
        schema.required = tuple(str(name) for name in required)
    return schema


class _Kept(msgspec.Struct):
    format: int
    server: str
    at: float
    schemas: Schemas


class SchemaSource:
    """The schemas of one server. They are read once, from the cache on disk or else from the server. `refresh` reads
    them from the server again."""

    def __init__(self, client: Client, directory: Path | None) -> None:
        self._client = client
        server = client.config.host
        self._server = server
        self._path = directory / "openapi" / f"{file_name(server)}.msgpack" if directory is not None else None
        self._schemas: Schemas | None = None
        self.from_disk = False

    async def get(self) -> Schemas:
        """Return the schemas. Raise StatusError, UnreachableError or GarbageError if the server does not answer."""
        if self._schemas is None:
            self._schemas = self._read()
            self.from_disk = self._schemas is not None
        return self._schemas if self._schemas is not None else await self.refresh()

    def missing(self) -> None:
        """Note that the server does not serve an OpenAPI document. `get` then returns empty schemas."""
        self._schemas = Schemas()

    async def refresh(self) -> Schemas:
        """Read the schemas from the server, and return them."""
        answer = await self._client.get("/openapi/v2")
        self._schemas = parse(answer.body)
        self.from_disk = False
        if self._path is not None:
            kept = _Kept(FORMAT, self._server, time.time(), self._schemas)
            write_file(self._path, msgspec.msgpack.encode(kept))
        return self._schemas

    def _read(self) -> Schemas | None:
        if self._path is None:
            return None
        try:
            kept = msgspec.msgpack.decode(self._path.read_bytes(), type=_Kept)
        except (OSError, *UNDECODABLE):
            return None
        fresh = 0 <= time.time() - kept.at < TTL_S
        return kept.schemas if fresh and kept.format == FORMAT and kept.server == self._server else None


def resolved(schema: Schema, definitions: Mapping[str, Schema]) -> tuple[Schema, str]:
    """Resolve a schema's reference. Return the definition and its name, or the schema and an empty name if it has no
    reference."""
    name = ""
    for _ in range(_MAX_DEPTH):
        if not schema.ref:
            return schema, name
        name = schema.ref
        schema = definitions.get(name, Schema())
    return Schema(), name
