"""A view of an informer's store that includes this process's own writes before the watch reports them.

Without it, a controller whose cache is behind its own writes would take the same step twice, or get a Conflict. The
result of a write replaces the object in the store until the informer has reached the version of the write. From then on
the store counts, even if it lacks the object, which was then deleted before it was reported. If the server is restored
from a backup, the writes are forgotten, because they may be lost.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.store import INDEXERS
from kubeproxy.kubernetes.metadata import Object, key_of

T = TypeVar("T", bound=Object)


class MutationCache(Generic[T]):
    """The objects of an informer, with newer states that this process has written."""

    def __init__(self, informer: Informer[T]) -> None:
        self._informer = informer
        self._store = informer.store
        self._written: dict[str, T] = {}
        informer.add_handler(self)
        informer.add_restore_handler(self._written.clear)

    def written(self, item: T) -> None:
        """Remember the result of a write of this process."""
        if _newer(item, self._store.get(key_of(item))):
            self._written[key_of(item)] = item

    def get(self, key: str) -> T | None:
        """Return the newest known state of an object, or None if there is none."""
        return self._newest(key) or self._store.get(key)

    def indexed(self, index: str, value: str) -> list[T]:
        """Return the objects that an index lists under a value. Index and result use the newest known states."""
        found = {key_of(item): item for item in self._store.indexed(index, value)}
        values_of = INDEXERS[index]
        for key in list(self._written):
            item = self._newest(key)
            if item is None:
                continue
            if value in values_of(item):
                found[key] = item
            else:
                found.pop(key, None)
        return list(found.values())

    # Called by the informer

    def added(self, item: T) -> None:
        """Forget the written state of a new object, unless it is newer."""
        self._seen(item)

    def updated(self, old: T, new: T) -> None:
        """Forget the written state of a changed object, unless it is newer."""
        self._seen(new)

    def deleted(self, item: T) -> None:
        """Forget the written state of a deleted object."""
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
    """Return whether `item` is newer than `known`, the state in the store. Return False if the versions are not
    numbers, which cannot be compared."""
    version = item.metadata.resource_version
    if not version.isdecimal():
        return False
    if known is None:
        return True
    stored = known.metadata.resource_version
    return stored.isdecimal() and int(version) > int(stored)
