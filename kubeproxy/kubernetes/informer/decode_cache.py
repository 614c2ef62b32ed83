"""What objects meant when they were last seen, so that a new list of the same costs nothing twice. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_DIGEST_BYTES = 16


class DecodeCache(Generic[T]):
    """The meanings by name, each with a digest of the text that it was read from: an object whose text is the same is
    not decoded again, and its meaning is not in memory twice. The text, not the resourceVersion: a server that was
    restored from a backup gives versions a second time, to other objects."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, list[T]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def meaning(self, name: str, raw: msgspec.Raw) -> list[T] | None:
        """What this text meant; None where the object's last one was another."""
        digest, found = self._known.get(name, (b"", None))
        return found if digest == _digest(raw) else None

    def note(self, name: str, raw: msgspec.Raw, found: list[T]) -> None:
        """From now on an object means this."""
        self._known[name] = _digest(raw), found

    def forget(self, name: str) -> None:
        """An object is gone, or unreadable."""
        self._known.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """A full list came: forget all others."""
        for name in self._known.keys() - set(names):
            del self._known[name]


def _digest(raw: msgspec.Raw) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
