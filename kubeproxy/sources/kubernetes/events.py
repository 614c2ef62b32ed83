"""What an API server says, from bytes to meaning: lines and events of a watch, pages of a list, errors. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from kubeproxy.sources import wire
from kubeproxy.sources.kubernetes.errors import ApiError, Expired, Forbidden, Garbage, Overloaded, Unauthorized

MAX_LINE_BYTES = 4 << 20
"""The longest line taken. One event is one line; a slice of 1000 endpoints makes 280 kB, and etcd by default refuses
objects above 1.5 MiB."""


class LineSplitter:
    """Cuts a stream into lines, however its pieces fall. Empty lines are dropped."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends; `Garbage` when one is longer than allowed."""
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
        """The beginning of a line whose end has not come."""
        return b"".join(self._pieces)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max:
            raise Garbage(f"a line of more than {self._max} bytes", cause="endless line")
        if piece:
            self._pieces.append(piece)


class EventType(StrEnum):
    """The types of event that reach the caller; an ERROR is raised instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Event(NamedTuple):
    """One event. A BOOKMARK's object is hollow: nothing in it but the resourceVersion is to be believed."""

    type: EventType
    metadata: wire.ObjectMeta
    resource_version: str
    object: msgspec.Raw


class Page(NamedTuple):
    """A list, or part of one: every page carries the resourceVersion of the first."""

    items: list[msgspec.Raw]
    resource_version: str
    token: str
    """Where to go on; empty: this was the last page."""


_decode_event = msgspec.json.Decoder(wire.WatchEvent).decode
_decode_page = msgspec.json.Decoder(wire.ObjectList[msgspec.Raw]).decode
_decode_hollow = msgspec.json.Decoder(wire.Hollow).decode
_decode_status = msgspec.json.Decoder(wire.Status).decode


def parse_event(line: bytes) -> Event:
    """The event on one line.

    Raises `Expired` for an ERROR of code 410, another `ApiError` for any other ERROR, and `Garbage` for what is no
    event at all, an unknown type included: skipped, it could hide a change for ever.
    """
    try:
        envelope = _decode_event(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbage(f"a line that is no watch event ({error}): {excerpt(line)}", cause="garbage") from error
    if envelope.type == "ERROR":
        status = parse_status(bytes(envelope.object))
        raise error_of(status, code=status.code or 500, seen="an ERROR event")
    try:
        kind = EventType(envelope.type)
        metadata = _decode_hollow(envelope.object).metadata
    except (ValueError, msgspec.DecodeError) as error:
        raise Garbage(f"a watch event that makes no sense ({error}): {excerpt(line)}", cause="garbage") from error
    if metadata is None or not metadata.resource_version:
        raise Garbage(f"a watch event without a resourceVersion: {excerpt(line)}", cause="garbage")
    if kind is not EventType.BOOKMARK and not metadata.name:
        raise Garbage(f"a watch event without a name: {excerpt(line)}", cause="garbage")
    return Event(kind, metadata, metadata.resource_version, envelope.object)


def parse_page(body: bytes) -> Page:
    """One page of a list, its items undecoded; `Garbage` for anything else."""
    try:
        page = _decode_page(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbage(f"a list that is none ({error}): {excerpt(body)}", cause="garbage") from error
    if not (page.kind or "").endswith("List") or page.metadata is None or not page.metadata.resource_version:
        raise Garbage(f"a list without kind or resourceVersion: {excerpt(body)}", cause="garbage")
    return Page(page.items or [], page.metadata.resource_version, page.metadata.continue_ or "")


def identity(raw: msgspec.Raw) -> wire.ObjectMeta:
    """An object's name and version, as far as they can be read."""
    try:
        return _decode_hollow(raw).metadata or wire.ObjectMeta()
    except msgspec.DecodeError:
        return wire.ObjectMeta()


def parse_status(body: bytes) -> wire.Status:
    """A Status as far as it can be read. Error bodies are often plain text, or HTML: then that is the message."""
    try:
        status = _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return wire.Status(message=excerpt(body))
    return status if status.message or status.reason else wire.Status(message=excerpt(body), code=status.code)


def error_of(status: wire.Status, *, code: int, seen: str, retry_after_s: float | None = None) -> ApiError:
    """The error that an answer of status `code` stands for, said as "`seen`: ..."."""
    reason = status.reason or ""
    message = ": ".join(part for part in (f"{seen} {code}", reason, (status.message or "").strip()) if part)
    if retry_after_s is None and status.details is not None and status.details.retry_after_seconds is not None:
        retry_after_s = float(status.details.retry_after_seconds)
    match code:
        case 410:
            token = (status.metadata.continue_ if status.metadata else None) or ""
            return Expired(message, reason=reason, token=token)
        case 401:
            return Unauthorized(message, cause="unauthorized", status=code, reason=reason)
        case 403:
            return Forbidden(message, cause="forbidden", status=code, reason=reason)
        case 429 | 503:
            cause = "too many requests" if code == 429 else "unavailable"
            return Overloaded(message, cause=cause, status=code, reason=reason, retry_after_s=retry_after_s)
        case _:
            return ApiError(message, cause=f"status {code}", status=code, reason=reason, retry_after_s=retry_after_s)


def excerpt(data: bytes, limit: int = 200) -> str:
    """The beginning of an answer, fit for a log line."""
    text = " ".join(data[: limit + 1].decode("utf-8", "replace").split())
    return f"{text[:limit]}..." if len(data) > limit else text
