"""Limits the memory for the objects of one resource, so that no namespace can use up the memory for the others.

The size of an object is that of its translation in JSON. Fields that are not decoded, such as most annotations, do not
count; endpoints do.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_KEPT_BYTES = 128 << 20
"""The largest total size of the objects of one resource, in bytes of JSON. It suffices for some 750,000 endpoints;
performance is measured with 10,000 Services of 10 endpoints. The memory used is several times as much."""
OBJECT_BYTES = 512
"""The assumed size of an object in addition to its translation, in bytes: its name, the digest of its text, and its
entries in tables."""
MAX_NAMED = 10_000
"""The largest number of left-out objects that are counted."""
_ROOM = 0.1
"""The fraction of the bound that has to become free before the resource is listed again to get objects that were left
out."""


class MemoryBound:
    """Decides which objects of one resource are kept, by their sizes in bytes.

    A new or growing object is kept if all objects together are within the bound, or if its namespace is within its fair
    share, which is the bound divided by the number of namespaces with objects. Kept objects are not removed for others.
    So a namespace that fills the bound only has its own objects left out.
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
        """Return the number of objects that were left out, up to MAX_NAMED."""
        return len(self._left_out)

    @property
    def largest(self) -> str:
        """Return the namespace with the largest total size, or an empty text if nothing is kept."""
        return max(self._namespaces, key=self._namespaces.__getitem__, default="")

    def admit(self, name: str, size: int) -> bool:
        """Return whether an object of this size may be kept. `name` is ``namespace/name``. If it may not, its former
        version counts as removed, too, because it is outdated."""
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
        """Remove an object that was deleted."""
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
        """Begin a whole list, which decides again which objects are left out."""
        self._left_out.clear()

    def keep(self, names: Collection[str]) -> None:
        """End a whole list. Remove all objects except those of the list."""
        for name in self._sizes.keys() - set(names):
            self.release(name)

    @property
    def worth_a_list(self) -> bool:
        """Return whether, since an object was last left out, so much memory has become free that the resource should be
        listed again."""
        return bool(self._left_out) and self.kept < self._worth_less_than
