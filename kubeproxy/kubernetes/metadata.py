"""The metadata of objects for controllers, with labels, owners, generation and times.

The API server never sends null for labels, annotations and lists of built-in kinds, so these fields do not allow null.
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
    """The metadata that keys, owner references and adoption need."""

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
    """The metadata of an object with all annotations, for controllers that read and write annotations."""

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
    """Return the owner reference of an object's controller, or None if it has no controller."""
    return next((reference for reference in item.metadata.owner_references if reference.controller), None)


def to_wire(value: Any) -> Any:
    """Convert a typed value to plain JSON values, with the API's field names."""
    return msgspec.to_builtins(value)
