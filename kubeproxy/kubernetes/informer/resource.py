"""A watched resource: where a kind of object lives in the API, and what becomes of it. No network here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from kubeproxy.kubernetes import objects
from kubeproxy.kubernetes.fault import Fault

T = TypeVar("T")


class Resource(ABC, Generic[T]):
    """A kind of object, on its way from JSON to the sink. `T` is what the sink is told."""

    name: str
    kind: str
    path: str
    query: Mapping[str, str]

    @abstractmethod
    def translate(self, raw: msgspec.Raw) -> tuple[list[T], list[Fault]]:
        """What one object means, and what is wrong with it. ``msgspec.ValidationError`` where a type is wrong."""

    @abstractmethod
    def replace(self, found: Iterable[T]) -> None:
        """Everything there is."""

    @abstractmethod
    def put(self, metadata: objects.ObjectMeta, found: list[T]) -> None:
        """An object is new or changed; `found` is what it now means, which may be nothing."""

    @abstractmethod
    def remove(self, metadata: objects.ObjectMeta) -> None:
        """An object is gone, or left the selection."""
