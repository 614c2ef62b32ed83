"""Limits how much of what an API server lists is kept, so that no namespace can use up the room of the others.

An object that is not kept costs nothing. A kept object costs its translation, for as long as it exists. Most of an
object is never decoded, so a tenant's annotations do not count here, and its endpoints do.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_KEPT_BYTES = 128 << 20
"""How many bytes of JSON are kept of one resource. That is some 750,000 endpoints, seven times the 10,000 Services with
10 endpoints each with which performance is measured. In memory it takes several times as much."""
OBJECT_BYTES = 512
"""What an object costs beside its translation: its name, the digest of its text, and its places in tables."""
MAX_NAMED = 10_000
"""How many objects that are left out are counted. Further ones are not counted."""
_ROOM = 0.1
"""The part of the bound that has to become free before a new list is worth it for the objects that were left out."""


class MemoryBound:
    """The objects of one resource that are kept, with their sizes in bytes.

    A kept object stays. An object that is new or grows is kept while all objects together stay within the bound, or
    else while its namespace has no more than a fair share. That share is the bound divided by the number of namespaces
    with at least one object. So a namespace that fills the bound only loses its own objects.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = MAX_KEPT_BYTES if limit is None else limit
        """The bound in bytes."""
        self._sizes: dict[str, int] = {}
        self._namespaces: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._worth_less_than = 0.0
        self.kept = 0
        """The number of bytes that are kept."""

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    @property
    def left_out(self) -> int:
        """Return the number of objects that are not kept, up to MAX_NAMED."""
        return len(self._left_out)

    @property
    def largest(self) -> str:
        """Return the namespace that has the most, or an empty text if nothing is kept."""
        return max(self._namespaces, key=self._namespaces.__getitem__, default="")

    def admit(self, name: str, size: int) -> bool:
        """Return whether an object (``namespace/name``) of this size may be kept. A refused object is also dropped,
        because its old version is no longer valid."""
        size += OBJECT_BYTES
        namespace = name.partition("/")[0]
        known = self._sizes.get(name, 0)
        kept = self.kept - known + size
        of_namespace = self._namespaces.get(namespace, 0) - known + size
        sharers = len(self._namespaces) + (namespace not in self._namespaces)
        if kept > self.limit and size > known and of_namespace > self.limit / sharers:
            self.release(name)
            if len(self._left_out) < MAX_NAMED:
                self._left_out.add(name)
            self._worth_less_than = min(self.kept, self.limit) - _ROOM * self.limit
            return False
        self._left_out.discard(name)
        self._sizes[name] = size
        self._namespaces[namespace] = of_namespace
        self.kept = kept
        return True

    def release(self, name: str) -> None:
        """Release the room of an object that is gone."""
        self._left_out.discard(name)
        size = self._sizes.pop(name, 0)
        if not size:
            return
        self.kept -= size
        namespace = name.partition("/")[0]
        rest = self._namespaces[namespace] - size
        if rest:
            self._namespaces[namespace] = rest
        else:
            del self._namespaces[namespace]

    def begin(self) -> None:
        """Begin a full list, which decides again what is left out."""
        self._left_out.clear()

    def keep(self, names: Collection[str]) -> None:
        """End a full list. All objects that were not in it are gone."""
        for name in self._sizes.keys() - set(names):
            self.release(name)

    @property
    def worth_a_list(self) -> bool:
        """Return whether so much room has become free since something was left out that a new list would bring some of
        it back."""
        return bool(self._left_out) and self.kept < self._worth_less_than
