"""The protocol between the control process and a worker: messages and their bytes.

A frame has a header (the length of the body, and the number of descriptors sent with the frame) and a body in
MessagePack, which is one request or one reply. Each request has a number, and its reply has the same number. A worker
replies in the order of the requests, except to `Drain` and `MoveTo`, whose replies wait for connections. A `Heartbeat`
is sent without a request, and has no number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from kubeproxy.dataplane.interface import BalancePreview, Counters, EjectedEndpoint, Ended, WorkerStatus
from kubeproxy.dataplane.messages import Message, RestoreBindings
from kubeproxy.dataplane.workers.move_protocol import Load, Receipt
from kubeproxy.model import Address, FrontendName, Target
from kubeproxy.model.errors import KubeproxyError

HEADER = struct.Struct("!IH")
BODY_LIMIT = 64 << 20
"""The largest body in bytes; a larger one is an error. The counters of ten thousand frontends take two million
bytes."""
DESCRIPTORS_LIMIT = 253
"""The largest number of descriptors that the kernel passes at once (SCM_MAX_FD, net/scm.h)."""
ROOM_BYTES = 128 << 10
"""The initial size of the receive buffer in bytes. Most frames are far shorter. The buffer grows for a longer one."""


class GarbledError(KubeproxyError):
    """Raised if the other side of the channel sent an invalid frame."""


# Requests of the control process.


class Apply(Struct, frozen=True, tag=True, array_like=True):
    """Apply messages in order. The reply is `DoneReply`. The request comes with a socket for each `Listen`, in the same
    order. A `Listen` for a frontend that is already served adds a new socket; the previous one stays open until
    `ClosePrevious`."""

    number: int
    messages: tuple[Message, ...]


class ClosePrevious(Struct, frozen=True, tag=True, array_like=True):
    """Close the replaced sockets of these frontends. The reply is `DoneReply`."""

    number: int
    frontends: tuple[FrontendName, ...]


class Topic(StrEnum):
    """What a `Query` asks for, and the kind of its reply."""

    COUNTERS = "counters"
    WORKER_STATUS = "worker_status"
    EJECTED = "ejected"
    ENDED = "ended"
    BINDINGS = "bindings"
    OPEN = "open"


class Query(Struct, frozen=True, tag=True, array_like=True):
    """Report counters, status, ejected endpoints, finished connections, affinity bindings, or numbers of open
    connections.

    The reply is `CountersReply`, `WorkerStatusReply`, `EjectedReply`, `EndedReply`, `BindingsReply` or `OpenReply`."""

    number: int
    topic: Topic


class PreviewRequest(Struct, frozen=True, tag=True, array_like=True):
    """Report the endpoints that the next connection of a client would try. The reply is `PreviewReply`."""

    number: int
    frontend: FrontendName
    client: Address
    port: int


class OpenToRequest(Struct, frozen=True, tag=True, array_like=True):
    """Count the open connections, dials and UDP sessions to each of these addresses. The reply is `OpenToReply`."""

    number: int
    addresses: frozenset[Address]


class StopAccepting(Struct, frozen=True, tag=True, array_like=True):
    """Accept the clients that are already queued, and then close all listeners. The reply is `DoneReply`."""

    number: int


class Drain(Struct, frozen=True, tag=True, array_like=True):
    """Wait until the connections that are open now have ended, for at most `grace_s` seconds. The reply is
    `DrainReply`."""

    number: int
    grace_s: float


class MoveTo(Struct, frozen=True, tag=True, array_like=True):
    """Move all connections to the workers of the instance with this control socket. The reply is `MoveReply`.
    Connections that begin later, or cannot move yet, follow by themselves as soon as they can."""

    number: int
    successor: str
    """The name of the control socket."""


class Adopt(Struct, frozen=True, tag=True, array_like=True):
    """Take over the connections that arrive through this channel, which is sent as a descriptor. The reply is
    `DoneReply`."""

    number: int


class Exit(Struct, frozen=True, tag=True, array_like=True):
    """Reset all connections and exit. The end of the channel is the reply."""

    number: int


# Replies and reports of a worker.


class DoneReply(Struct, frozen=True, tag=True, array_like=True):
    """Tells that a request is completed, with the failures by frontend."""

    number: int
    open: int
    """The number of open connections and dials in progress, as in every reply."""
    failures: tuple[tuple[FrontendName, str], ...] = ()


class CountersReply(Struct, frozen=True, tag=True, array_like=True):
    """The counters that have changed since the last report. If `more` is true, another reply with the same number
    follows; the last one completes the request."""

    number: int
    open: int
    counters: tuple[tuple[FrontendName, Counters], ...]
    more: bool = False


class WorkerStatusReply(Struct, frozen=True, tag=True, array_like=True):
    """The status of the serving process."""

    number: int
    open: int
    worker_status: WorkerStatus


class EjectedReply(Struct, frozen=True, tag=True, array_like=True):
    """The ejected endpoints, by frontend."""

    number: int
    open: int
    ejected: tuple[tuple[FrontendName, tuple[EjectedEndpoint, ...]], ...]


class EndedReply(Struct, frozen=True, tag=True, array_like=True):
    """The connections that have ended since the last query."""

    number: int
    open: int
    ended: tuple[Ended, ...]


class PreviewReply(Struct, frozen=True, tag=True, array_like=True):
    """The endpoints that the client's next connection would try, or None if the frontend is not served."""

    number: int
    open: int
    preview: BalancePreview | None


class OpenToReply(Struct, frozen=True, tag=True, array_like=True):
    """The number of open connections, dials and UDP sessions by address. Addresses without any are left out."""

    number: int
    open: int
    counts: tuple[tuple[Address, int], ...]


class OpenReply(Struct, frozen=True, tag=True, array_like=True):
    """The number of open connections and sessions by frontend and endpoint. Endpoints without any are left out."""

    number: int
    open: int
    counts: tuple[tuple[FrontendName, tuple[tuple[Target, int], ...]], ...]


class BindingsReply(Struct, frozen=True, tag=True, array_like=True):
    """The affinity bindings used since the last query. Several replies with the same number may follow each other. The
    last one has None and completes the request."""

    number: int
    open: int
    bindings: RestoreBindings | None = None


class DrainReply(Struct, frozen=True, tag=True, array_like=True):
    """The number of connections left after a drain."""

    number: int
    open: int
    left: int


class MoveReply(Struct, frozen=True, tag=True, array_like=True):
    """Tells that everything that can move has moved, or that the successor cannot be reached. It has the numbers of
    moved and of remaining connections."""

    number: int
    open: int
    moved: int
    left: int


class Heartbeat(Struct, frozen=True, tag=True, array_like=True):
    """A message that a worker sends regularly without a request. It shows that the worker is alive, and has its number
    of open connections."""

    open: int


Request = Apply | ClosePrevious | Query | PreviewRequest | OpenToRequest | StopAccepting | Drain | MoveTo | Adopt | Exit
Reply = (
    DoneReply
    | CountersReply
    | WorkerStatusReply
    | EjectedReply
    | EndedReply
    | PreviewReply
    | OpenToReply
    | OpenReply
    | BindingsReply
    | DrainReply
    | MoveReply
)
Report = Reply | Heartbeat
Frame = Request | Report | Load | Receipt

F = TypeVar("F", Request, Report, Load, Receipt)

_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame, descriptors: int = 0) -> bytes:
    """Return a frame as bytes. `descriptors` is the number of descriptors sent with it."""
    body = _encoder.encode(frame)
    return HEADER.pack(len(body), descriptors) + body


class Decoder(Generic[F]):
    """Decodes received bytes into frames of one direction, each with the number of its descriptors.

    Bytes are received into `room`, which is allocated in advance, and stay there until they are decoded. So no byte is
    lost if there is no memory for a decoded frame."""

    def __init__(self, kind: object) -> None:
        """`kind` is `Request` or `Report`."""
        self._decoder: msgspec.msgpack.Decoder[F] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray(ROOM_BYTES)
        self._start = self._end = 0
        """The part of the buffer with bytes that are not decoded yet."""

    @property
    def room(self) -> memoryview:
        """Return the memory into which to receive the next bytes. It is not empty after `frames` has been
        exhausted."""
        return memoryview(self._buffer)[self._end :]

    @property
    def left(self) -> int:
        """Return the number of bytes that are not decoded yet."""
        return self._end - self._start

    def frames(self, arrived: int) -> Iterator[tuple[F, int]]:
        """Yield the frames that are complete once `arrived` bytes have been received into `room`. Raise MemoryError if
        there is no memory for the next frame or a larger buffer; the next call continues there. Raise GarbledError for
        an invalid frame; nothing can be decoded after that."""
        self._end += arrived
        while (size := self._next_size()) <= self._end - self._start:
            frame, descriptors = self._decode(self._start + HEADER.size, size - HEADER.size)
            self._start += size
            yield frame, descriptors
        self._make_room(size)

    def _next_size(self) -> int:
        """Return the size of the next frame, or of a header if the header is incomplete."""
        if self._end - self._start < HEADER.size:
            return HEADER.size
        length, descriptors = HEADER.unpack_from(self._buffer, self._start)
        if length > BODY_LIMIT or descriptors > DESCRIPTORS_LIMIT:
            raise GarbledError(f"a frame of {length} bytes and {descriptors} descriptors exceeds the limits")
        return HEADER.size + int(length)

    def _decode(self, start: int, length: int) -> tuple[F, int]:
        _, descriptors = HEADER.unpack_from(self._buffer, start - HEADER.size)
        try:
            with memoryview(self._buffer) as whole, whole[start : start + length] as body:
                return self._decoder.decode(body), descriptors
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError) as error:
            raise GarbledError(f"not a frame: {error}") from error

    def _make_room(self, size: int) -> None:
        """Enlarge the buffer if it is full and the frame of `size` bytes is incomplete, or shrink it again after a long
        frame. Whatever a header announces, the buffer is never larger than twice the bytes that have arrived."""
        rest, buffer = self._end - self._start, self._buffer
        if rest == len(buffer):
            buffer = bytearray(min(size, 2 * rest))
        elif rest < ROOM_BYTES < len(buffer) and size <= ROOM_BYTES:
            buffer = bytearray(ROOM_BYTES)
        if self._start or buffer is not self._buffer:
            memoryview(buffer)[:rest] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, rest
