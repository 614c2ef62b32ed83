"""Stores objects by key, with indexes for other look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from kubeproxy.kubernetes.metadata import Object, controller_of, key_of

T = TypeVar("T", bound=Object)
Indexer = Callable[[Object], Iterable[str]]
"""A function that returns the values under which an index lists an object."""

NAMESPACE = "namespace"
CONTROLLER = "controller"
ORPHANS = "orphans"


def by_namespace(item: Object) -> Iterable[str]:
    """Index objects by namespace."""
    return (item.metadata.namespace,)


def by_controller(item: Object) -> Iterable[str]:
    """Index objects by the UID of their controller. Objects without controller are not in this index."""
    owner = controller_of(item)
    return () if owner is None else (owner.uid,)


def by_orphanage(item: Object) -> Iterable[str]:
    """Index objects without controller by namespace."""
    return (item.metadata.namespace,) if controller_of(item) is None else ()


INDEXERS: Mapping[str, Indexer] = {
    NAMESPACE: by_namespace,
    CONTROLLER: by_controller,
    ORPHANS: by_orphanage,
}
"""The default indexes, which controllers use. For example, they find the pods of one owner without a search through the
namespace."""


class Store(Generic[T]):
    """Objects by ``NAMESPACE/NAME``, with indexes. Returned objects are shared, and must not be modified."""

    def __init__(self) -> None:
        self._items: dict[str, T] = {}
        self._indexes: dict[str, dict[str, dict[str, T]]] = {name: {} for name in INDEXERS}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def get(self, key: str) -> T | None:
        """Return the object with this key, or None."""
        return self._items.get(key)

    def keys(self) -> set[str]:
        """Return all keys."""
        return set(self._items)

    def indexed(self, index: str, value: str) -> list[T]:
        """Return the objects that an index lists under a value, in the order of their insertion."""
        return list(self._indexes[index].get(value, {}).values())

    def put(self, item: T) -> T | None:
        """Add or replace an object. Return the replaced object, or None."""
        key = key_of(item)
        before = self._items.get(key)
        if before is not None:
            self._unlist(key, before)
        self._items[key] = item
        for name, values in INDEXERS.items():
            for value in values(item):
                self._indexes[name].setdefault(value, {})[key] = item
        return before

    def remove(self, key: str) -> T | None:
        """Remove the object with this key, and return it, or None if there is none."""
        before = self._items.pop(key, None)
        if before is not None:
            self._unlist(key, before)
        return before

    def _unlist(self, key: str, item: T) -> None:
        for name, values in INDEXERS.items():
            index = self._indexes[name]
            for value in values(item):
                listed = index[value]
                del listed[key]
                if not listed:
                    del index[value]
