"""Caches translated objects, so that an unchanged object in a new list is not decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_DIGEST_BYTES = 16


class DecodeCache(Generic[T]):
    """Translated objects by name, each with a digest of its text.

    An object with the same text is neither decoded again nor in memory twice. The key is the text and not the
    resourceVersion, because a server that was restored from a backup assigns versions a second time, to other objects.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, list[T]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def meaning(self, name: str, raw: msgspec.Raw) -> list[T] | None:
        """Return the translation of this text, or None if the object's last text differs."""
        digest, found = self._known.get(name, (b"", None))
        return found if digest == _digest(raw) else None

    def note(self, name: str, raw: msgspec.Raw, found: list[T]) -> None:
        """Store an object's translation."""
        self._known[name] = _digest(raw), found

    def forget(self, name: str) -> None:
        """Drop an object that is gone or unreadable."""
        self._known.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Drop all objects that a full list does not name."""
        for name in self._known.keys() - set(names):
            del self._known[name]


def _digest(raw: msgspec.Raw) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
