"""The metadata of objects as controllers need it: in addition to name and version it has labels, owners, generation and
times.

Objects of the built-in kinds come from typed storage, so labels, annotations and lists are absent or present, never
null.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from kubeproxy.kubernetes.api_types import Wire


class OwnerReference(Wire, frozen=True, omit_defaults=True):
    """A reference to the object that owns this one."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Meta(Protocol):
    """The part of the metadata from which owner references and keys are made."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def owner_references(self) -> list[OwnerReference]: ...
    @property
    def deletion_timestamp(self) -> str | None: ...
    @property
    def creation_timestamp(self) -> str | None: ...


class Object(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> Meta: ...


class Metadata(Wire, frozen=True):
    """The metadata of an object, where a controller reads and writes annotations."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list)


def key_of(item: Object) -> str:
    """Return ``NAMESPACE/NAME``, the key of an object in caches and queues."""
    return f"{item.metadata.namespace}/{item.metadata.name}"


def controller_of(item: Object) -> OwnerReference | None:
    """Return the owner that controls an object, or None for an orphan."""
    return next((reference for reference in item.metadata.owner_references if reference.controller), None)


def to_wire(value: Any) -> Any:
    """Return a typed value as plain JSON values, with the field names of the API."""
    return msgspec.to_builtins(value)
