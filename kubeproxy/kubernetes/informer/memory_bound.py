"""How much of what an API server lists is kept: a bound that no namespace can use up for the others. Pure.

An object that passes costs nothing; what it means is kept for as long as it is there. Most of an object is never
decoded, so a tenant's annotations count for nothing here, and its endpoints count.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_KEPT_BYTES = 128 << 20
"""What is kept of one resource, in bytes of JSON: some 750,000 endpoints, seven times the 10,000 Services with 10
endpoints each that this is measured with. In memory it takes several times as much."""
OBJECT_BYTES = 512
"""What an object costs beside its meaning: its name, the digest of its text, its places in tables."""
MAX_NAMED = 10_000
"""Objects left out that are counted each; more are not counted."""
_ROOM = 0.1
"""The part of the bound that has to become free before those left out are worth a new list."""


class MemoryBound:
    """The objects of one resource that are kept, with their sizes in bytes.

    What is known stays. What is new or grows is kept while all together stay within the bound, or else while its
    namespace has no more than a fair part, which is the bound divided by the namespaces that have anything: one that
    fills the bound leaves out its own objects, and not those of others.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = MAX_KEPT_BYTES if limit is None else limit
        """In bytes."""
        self._sizes: dict[str, int] = {}
        self._namespaces: dict[str, int] = {}
        self._left_out: set[str] = set()
        self._worth_less_than = 0.0
        self.kept = 0
        """Bytes kept."""

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    @property
    def left_out(self) -> int:
        """Objects that are not kept, up to MAX_NAMED."""
        return len(self._left_out)

    @property
    def largest(self) -> str:
        """The namespace that has most; empty where nothing is kept."""
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
        """An object is gone."""
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
        """A full list begins: what is left out is found anew."""
        self._left_out.clear()

    def keep(self, names: Collection[str]) -> None:
        """A full list came: all others are gone."""
        for name in self._sizes.keys() - set(names):
            self.release(name)

    @property
    def worth_a_list(self) -> bool:
        """Whether so much has gone since something was left out that a new list would bring some of it back."""
        return bool(self._left_out) and self.kept < self._worth_less_than
