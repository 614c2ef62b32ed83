"""A store that also knows this process's own writes before the watch reports them.

A controller that decides from a cache that lags behind its own writes would take the same step twice, or meet a
Conflict. The result of a write counts until the informer has reached its version. Then the store counts, even if it has
no such object, because the object was deleted before it was ever reported. The store alone counts again, too, when the
server was restored from a backup: then what was written may be lost.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.store import Indexer
from kubeproxy.kubernetes.metadata import Object, key_of

T = TypeVar("T", bound=Object)


class MutationCache(Generic[T]):
    """The objects of an informer, and newer states of them that this process has written."""

    def __init__(self, informer: Informer[T]) -> None:
        self._informer = informer
        self._store = informer.store
        self._written: dict[str, T] = {}
        informer.add_handler(self)
        informer.add_restore_handler(self._written.clear)

    def written(self, item: T) -> None:
        """Note that the server has answered a write of this process with `item`."""
        if _newer(item, self._store.get(key_of(item))):
            self._written[key_of(item)] = item

    def get(self, key: str) -> T | None:
        """Return the newest known state of an object."""
        return self._newest(key) or self._store.get(key)

    def indexed(self, index: str, value: str) -> list[T]:
        """Return the objects that an index lists under a value, by their newest known state."""
        found = {key_of(item): item for item in self._store.indexed(index, value)}
        indexer: Indexer[T] = self._store.indexer(index)
        for key in list(self._written):
            item = self._newest(key)
            if item is None:
                continue
            if value in indexer(item):
                found[key] = item
            else:
                found.pop(key, None)
        return list(found.values())

    # What the informer reports.

    def added(self, item: T) -> None:
        """Note that the store has a new object."""
        self._seen(item)

    def updated(self, old: T, new: T) -> None:
        """Note that the store has a newer state."""
        self._seen(new)

    def deleted(self, item: T) -> None:
        """Note that the object is gone."""
        self._written.pop(key_of(item), None)

    def _seen(self, item: T) -> None:
        known = self._written.get(key_of(item))
        if known is not None and not _newer(known, item):
            del self._written[key_of(item)]

    def _newest(self, key: str) -> T | None:
        known = self._written.get(key)
        if known is not None and self._informer.includes(known.metadata.resource_version):
            del self._written[key]
            return None
        return known


def _newer(item: Object, known: Object | None) -> bool:
    """Return whether `item` is a later state than what the store has. If the versions are not numbers they cannot be
    compared, and the state of the store is used."""
    version = item.metadata.resource_version
    if not version.isdecimal():
        return False
    if known is None:
        return True
    stored = known.metadata.resource_version
    return stored.isdecimal() and int(version) > int(stored)
