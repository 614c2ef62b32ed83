"""Caches translated objects, so that unchanged objects of a new list are not decoded again."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_DIGEST_BYTES = 16


class DecodeCache(Generic[T]):
    """The translated objects by name, each with a digest of its JSON text.

    Objects are compared by their text and not by their resourceVersion, because a server that was restored from a
    backup assigns the same versions again, to other states.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, list[T]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def meaning(self, name: str, raw: msgspec.Raw) -> list[T] | None:
        """Return the translation of an object if its last text equals `raw`, and None otherwise."""
        digest, found = self._known.get(name, (b"", None))
        return found if digest == _digest(raw) else None

    def note(self, name: str, raw: msgspec.Raw, found: list[T]) -> None:
        """Store the translation of an object's text."""
        self._known[name] = _digest(raw), found

    def forget(self, name: str) -> None:
        """Remove an object that was deleted or cannot be decoded."""
        self._known.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Remove all objects that are not in a whole list. `names` are the objects in the list."""
        for name in self._known.keys() - set(names):
            del self._known[name]


def _digest(raw: msgspec.Raw) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
