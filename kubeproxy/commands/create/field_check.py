"""Checks the fields of an object against the server's OpenAPI document before it is sent, if the server does not check
them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kubeproxy.commands.create.options import DryRun, Validation
from kubeproxy.kubernetes.client.errors import StatusError
from kubeproxy.kubernetes.resource_builder.errors import InvalidError, Position
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.openapi import Schemas, SchemaSource
from kubeproxy.kubernetes.resource_builder.validation import Fault, validate

FIELD_VALIDATION_MINOR: Final = 27
"""The minor version of Kubernetes from which on every server checks fields itself: 1.27."""


class FieldCheck:
    """Checks the fields of objects. It is the `validate` function of a `Builder`."""

    def __init__(
        self,
        level: Validation,
        dry_run: DryRun,
        mapper: Mapper,
        schemas: SchemaSource,
        on_warning: Callable[[str], None],
    ) -> None:
        self._level = level
        self._dry_run = dry_run
        self._mapper = mapper
        self._source = schemas
        self._on_warning = on_warning
        self._by_server: bool | None = None

    async def __call__(self, found: ResourceObject, duplicates: Sequence[str]) -> None:
        """Check an object's fields. For unknown or repeated fields, raise InvalidError if the level is ``strict``, and
        warn if it is ``warn``."""
        if self._level is Validation.IGNORE:
            return
        faults = [Fault(text, ()) for text in duplicates]
        if not await self._server_checks():
            faults += await self._faults(found)
        if not faults:
            return
        if self._level is Validation.WARN:
            for fault in faults:
                self._on_warning(f"{found.position.source}: {fault.message} ({self._place(found, fault)})")
            return
        messages = [fault.message for fault in faults]
        text = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
        raise InvalidError(text, self._place(found, faults[0]))

    @staticmethod
    def _place(found: ResourceObject, fault: Fault) -> Position:
        return found.position.of_field(found.text, fault.path)

    async def _server_checks(self) -> bool:
        """Return whether the server checks the fields of this run's objects. It does not if the objects are not sent,
        or if it is older than 1.27."""
        if self._dry_run is DryRun.CLIENT:
            return False
        if self._by_server is None:
            self._by_server = (await self._mapper.index()).catalog.minor >= FIELD_VALIDATION_MINOR
        return self._by_server

    async def _faults(self, found: ResourceObject) -> list[Fault]:
        schemas = await self._schemas()
        if schemas is None:
            return []
        faults = validate(found.data, schemas)
        if not faults and self._known(found, schemas):
            return []
        if self._source.from_disk:  # The kind or the field may be newer than the document on disk.
            return validate(found.data, await self._source.refresh())
        return faults

    @staticmethod
    def _known(found: ResourceObject, schemas: Schemas) -> bool:
        group, _, version = found.api_version.rpartition("/")
        return schemas.of(group, version, found.kind) is not None

    async def _schemas(self) -> Schemas | None:
        """Return the server's schemas, or None if the server has no OpenAPI document or denies it to this user."""
        try:
            return await self._source.get()
        except StatusError as error:
            if error.status not in (403, 404, 406):
                raise
            self._source.missing()
            self._on_warning(f"fields are not checked: the server has no OpenAPI document ({error})")
            self._level = Validation.IGNORE
            return None
