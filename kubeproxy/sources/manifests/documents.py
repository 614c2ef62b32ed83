"""Splits a manifest's text into documents and items of lists, and reads their objects.

Each document is parsed separately, so an invalid document does not affect the others. A text that was parsed before is
not parsed again: if one of thousands of Services in a file changes, only that one is parsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.kubernetes.manifests.json_text import as_utf8, json_values
from kubeproxy.kubernetes.manifests.lines import steps
from kubeproxy.kubernetes.manifests.parse import JsonValue, ManifestSyntaxError, is_json, parse
from kubeproxy.kubernetes.manifests.split import split, split_list
from kubeproxy.sources.manifests.objects import (
    LISTS,
    Entry,
    ObjectKind,
    RefusedObjectError,
    Terms,
    join_paths,
    list_items,
    list_kind,
    objects,
)

Items = tuple[tuple[str, Entry], ...]
"""The objects of a document. Each has its path in the document."""


class Place(NamedTuple):
    """The position of an object in a manifest."""

    document: int
    """The document's number, counted from 1 without empty documents, or 0 for the manifest as a whole."""
    item: str = ""
    """The object's path within a list, such as ``items[3]``, or empty."""

    def path(self, field_path: str) -> str:
        """Return the path of the object's field from the root of the document."""
        return join_paths(self.item, field_path)


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading one manifest."""

    entries: tuple[tuple[Place, Entry], ...] = ()
    texts: Mapping[bytes, Items] = field(default_factory=dict)
    """The parsed documents and items by the digest of their text. The next reading reuses them."""


class Piece(NamedTuple):
    """An object with its position and its text."""

    place: Place
    entry: Entry
    text: bytes
    """The text of the document, or of the item of a list, that contains the object."""
    line: int
    """The line of the manifest at which the text begins."""
    path: str
    """The path of the text within the document, or empty if the text is the whole document."""

    @property
    def inner_path(self) -> str:
        """Return the object's path within the text."""
        return self.place.item.removeprefix(self.path).lstrip(".")

    def value(self) -> object:
        """Return the object as plain Python data, or None if the text cannot be parsed."""
        try:
            (plain, *_) = [value.to(object) for value in parse(self.text, self.line)]
        except (ManifestSyntaxError, ValueError, msgspec.MsgspecError, RecursionError):
            return None
        try:
            for step in steps(self.inner_path):
                plain = plain[step]  # type: ignore[index]  # as it was read
        except (LookupError, TypeError):
            return None
        return plain


@dataclass(frozen=True, slots=True)
class _Part:
    """A text that is parsed by itself: a document, or an item of a list."""

    text: bytes
    line: int
    """The line at which the text begins."""
    digest: bytes
    """The digest of the text and of `list_kind`."""
    of_list: ObjectKind | None = None
    """The kind of the object if the text is an item of a typed list, and otherwise None."""
    path: str = ""
    """The path of the text within its document, such as ``items[3]``, or empty."""
    refused: Fault | None = None
    """The fault for which the whole document is refused without parsing it, or None."""


def read(data: bytes, terms: Terms, previous: Reading | None = None) -> Reading:
    """Read the objects of a manifest. This never raises; faults of the text are reported as faults of entries.

    Only texts that are not in the reading `previous` are parsed. Entries that are equal to entries of `previous` are
    the same Python objects, so that comparing them is fast.
    """
    reader = _Reader(terms, previous or Reading())
    entries = tuple((piece.place, piece.entry) for piece in _pieces(data, reader))
    return Reading(entries=entries, texts=reader.texts)


def pieces(data: bytes, terms: Terms) -> Iterator[Piece]:
    """Yield the objects of a manifest, each with its text. Like `read`, this never raises."""
    return _pieces(data, _Reader(terms, Reading()))


def _pieces(data: bytes, reader: _Reader) -> Iterator[Piece]:
    index = 0
    for parts in _outline(data):
        items = [(part, *item) for part in parts for item in reader.items(part)]
        index += bool(items)
        for part, path, entry in items:
            yield Piece(Place(index, path), entry, part.text, part.line, part.path)


def _outline(data: bytes) -> Iterator[tuple[_Part, ...]]:
    """Yield the parts of each document. Documents are split in the same way as in the commands."""
    for line, text in split(as_utf8(data)):
        for row, value in json_values(text, line) or ((line, text),):
            yield _parts(value, row) or (_Part(value, row, _digest(value)),)


def _parts(text: bytes, line: int) -> tuple[_Part, ...]:
    """Return the items of a list. Return an empty tuple if the text is not a list or has to be parsed as a whole."""
    try:
        if is_json(text):
            fields = JsonValue(text).fields()
            kind = list_kind(fields)
            items = [(0, bytes(item.raw)) for item in list_items(fields.get("items")) if isinstance(item, JsonValue)]
        else:
            cut = split_list(text)
            if cut is None or b"&" in text:  # An alias may refer to an anchor in another item.
                return ()
            head, items = cut
            (value,) = parse(head, line)
            kind = list_kind(value.fields())
    except RefusedObjectError as refused:
        return (_Part(text, line, b"", refused=refused.fault),)
    except (ManifestSyntaxError, ValueError, msgspec.MsgspecError, RecursionError):
        return ()
    if kind not in LISTS:
        return ()
    return tuple(
        _Part(item, line + lines, _digest(item, kind), LISTS[kind], f"items[{index}]")
        for index, (lines, item) in enumerate(items)
    )


def _digest(text: bytes, kind: str = "") -> bytes:
    return hashlib.blake2b(text, digest_size=16, key=kind.encode()).digest()


class _Reader:
    """Reads parts. Parts of the previous reading are not parsed again."""

    def __init__(self, terms: Terms, previous: Reading) -> None:
        self._terms = terms
        self._previous = previous.texts
        self._standing = {entry.name: entry for _, entry in previous.entries}
        self.texts: dict[bytes, Items] = {}

    def items(self, part: _Part) -> Items:
        """Return the objects of a part, each with its path in the document."""
        if part.refused is not None:
            return (("", Entry(faults=(part.refused,))),)
        items = self._previous.get(part.digest)
        if items is None:
            items = self._parsed(part)
        # Do not reuse broken entries, because their faults have line numbers, which may change.
        if not any(entry.broken for _, entry in items):
            self.texts[part.digest] = items
        return tuple((join_paths(part.path, path), entry) for path, entry in items) if part.path else items

    def _parsed(self, part: _Part) -> Items:
        try:
            values = parse(part.text, part.line)
        except ManifestSyntaxError as error:
            return (("", Entry(faults=(error.fault,))),)
        entries = (item for value in values for item in objects(value, self._terms, of_list=part.of_list))
        return tuple((path, self._same(entry)) for path, entry in entries)

    def _same(self, entry: Entry) -> Entry:
        standing = self._standing.get(entry.name)
        return standing if standing is not None and standing == entry else entry
