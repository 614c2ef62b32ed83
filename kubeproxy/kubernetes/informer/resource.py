"""A watched resource: its place in the API, and its way to the sink. It does no network requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault

T = TypeVar("T")


class Resource(ABC, Generic[T]):
    """A kind of object, translated from JSON for the sink. `T` is the type that the sink takes."""

    name: str
    kind: str
    path: str
    query: Mapping[str, str]

    @abstractmethod
    def translate(self, raw: msgspec.Raw) -> tuple[list[T], list[Fault]]:
        """Return the translation of one object, and its faults. Raise ``msgspec.ValidationError`` if a type is
        wrong."""

    @abstractmethod
    def replace(self, found: Iterable[T]) -> None:
        """Replace all objects of the sink."""

    def listed(self, version: str) -> None:
        """Note the resourceVersion of the list that `replace` got. By default it is ignored."""

    @abstractmethod
    def put(self, metadata: api_types.ObjectMeta, found: list[T]) -> None:
        """Add or change an object. `found` is its translation, which may be empty."""

    @abstractmethod
    def remove(self, metadata: api_types.ObjectMeta) -> None:
        """Remove an object that was deleted or left the selection."""
