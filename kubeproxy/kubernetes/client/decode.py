"""Decodes the events of watches and the pages of lists that an API server sends."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeGuard

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.errors import GarbageError
from kubeproxy.kubernetes.client.status import excerpt, parse_status, status_error

MAX_OBJECT_BYTES = 32 << 20
"""The longest object that is accepted, in bytes of JSON. A line of a watch may not be longer either.

No tenant can write a longer object. A server accepts requests of 3 MiB, and JSON makes at most six bytes of one (a
``<`` becomes ``\u003c``), which is 18 MiB. An EndpointSlice of 1000 endpoints has 280 kB.
"""
MAX_VERSION = 128
"""The maximum length of a resourceVersion. It is limited because it is sent back in a URL. Real servers use up to 20
digits."""
MAX_TOKEN = 4096
"""The maximum length of a continue token, an etcd key in base64. It is limited because it is sent back in a URL."""


class LineSplitter:
    """Splits a stream that arrives in pieces into lines. Empty lines are dropped."""

    def __init__(self, *, max_line_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._max = max_line_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add a piece of the stream. Return the lines that are now complete, without line ends. Raise `GarbageError`
        if a line is too long."""
        end = data.find(b"\n")
        if end < 0:
            self._keep(data)
            return []
        self._keep(data[:end])
        lines = [b"".join(self._pieces), *data[end + 1 :].split(b"\n")]
        self._pieces.clear()
        self._size = 0
        self._keep(lines.pop())
        return [line for line in lines if line and not line.isspace()]

    @property
    def rest(self) -> bytes:
        """Return the incomplete last line."""
        return b"".join(self._pieces)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max:
            raise GarbageError(f"a line of more than {self._max} bytes", cause="endless line")
        if piece:
            self._pieces.append(piece)


class EventType(StrEnum):
    """The types of watch events. An event of type ERROR is raised as an exception instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Event(NamedTuple):
    """One event of a watch. The object of a BOOKMARK has only a resourceVersion."""

    type: EventType
    kind: str
    """The object's kind, or empty if the object does not state it."""
    metadata: api_types.ObjectMeta
    resource_version: str
    object: msgspec.Raw


class Page(NamedTuple):
    """A page of a list. All pages of a list have the same resourceVersion."""

    kind: str
    """The kind of the list, such as ``ServiceList``."""
    items: list[msgspec.Raw]
    resource_version: str
    token: str
    """The continue token, or empty on the last page."""


_decode_event = msgspec.json.Decoder(api_types.WatchEvent).decode
_decode_page = msgspec.json.Decoder(api_types.ObjectList[msgspec.Raw]).decode
_decode_hollow = msgspec.json.Decoder(api_types.Hollow).decode


def parse_event(line: bytes) -> Event:
    """Decode one line of a watch to an event.

    Raise `ExpiredError` for an ERROR of code 410, another `ApiError` for any other ERROR, and `GarbageError` for a
    line that is not an event. An unknown event type is also `GarbageError`, because ignoring the event could hide a
    change forever.
    """
    try:
        envelope = _decode_event(line)
    except api_types.UNDECODABLE as error:
        raise GarbageError(f"a line that is no watch event ({error}): {excerpt(line)}", cause="garbage") from error
    if envelope.type == "ERROR":
        status = parse_status(bytes(envelope.object))
        raise status_error(status, code=status.code or 500, seen="an ERROR event")
    try:
        event_type = EventType(envelope.type)
        hollow = _decode_hollow(envelope.object)
    except (ValueError, *api_types.UNDECODABLE) as error:
        raise GarbageError(f"an invalid watch event ({error}): {excerpt(line)}", cause="garbage") from error
    metadata = hollow.metadata
    if metadata is None or not _is_version(metadata.resource_version):
        raise GarbageError(f"a watch event without a resourceVersion: {excerpt(line)}", cause="garbage")
    if event_type is not EventType.BOOKMARK and not metadata.name:
        raise GarbageError(f"a watch event without a name: {excerpt(line)}", cause="garbage")
    return Event(event_type, hollow.kind or "", metadata, metadata.resource_version, envelope.object)


def parse_page(body: bytes | bytearray) -> Page:
    """Decode one page of a list, with its items undecoded. Raise `GarbageError` if the body is not a list."""
    try:
        page = _decode_page(body)
    except api_types.UNDECODABLE as error:
        raise GarbageError(f"an answer that is no list ({error}): {excerpt(body)}", cause="garbage") from error
    kind = page.kind or ""
    if not kind.endswith("List") or page.metadata is None or not _is_version(page.metadata.resource_version):
        raise GarbageError(f"a list without kind or resourceVersion: {excerpt(body)}", cause="garbage")
    token = page.metadata.continue_ or ""
    if len(token) > MAX_TOKEN:
        raise GarbageError(f"a list with a continue token of {len(token)} characters: {excerpt(body)}", cause="garbage")
    return Page(kind, page.items or [], page.metadata.resource_version, token)


def _is_version(text: str | None) -> TypeGuard[str]:
    return text is not None and 0 < len(text) <= MAX_VERSION and text.isascii() and text.isprintable()


def identity(raw: msgspec.Raw) -> api_types.ObjectMeta:
    """Return an object's metadata. Fields that cannot be decoded are left at their defaults."""
    try:
        return _decode_hollow(raw).metadata or api_types.ObjectMeta()
    except api_types.UNDECODABLE:
        return api_types.ObjectMeta()
