"""The interface between a reflector and the owner of the objects: the resource's path, the translation of its objects,
and the methods that receive them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault

T = TypeVar("T")


class Resource(ABC, Generic[T]):
    """A watched resource. `T` is the type to which its objects are translated."""

    name: str
    kind: str
    path: str
    query: Mapping[str, str]

    @abstractmethod
    def translate(self, raw: msgspec.Raw) -> tuple[list[T], list[Fault]]:
        """Return the translation of one object, which may be empty, and its faults. Raise ``msgspec.ValidationError``
        if a type is wrong."""

    @abstractmethod
    def replace(self, found: Iterable[T]) -> None:
        """Replace all objects by the translations of a whole list."""

    def listed(self, version: str) -> None:
        """Note the resourceVersion of the list that was passed to `replace`. By default, do nothing."""

    @abstractmethod
    def put(self, metadata: api_types.ObjectMeta, found: list[T]) -> None:
        """Add or replace an object. `found` is its translation, which may be empty."""

    @abstractmethod
    def remove(self, metadata: api_types.ObjectMeta) -> None:
        """Remove an object that was deleted or is no longer selected."""
