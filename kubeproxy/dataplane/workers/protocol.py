"""What crosses between the control process and a worker, as values and as bytes. Pure.

A frame is a header - length of the body, number of descriptors that travel beside it - and a body in MessagePack: one
request or one answer. Requests are numbered, and each gets one answer with its number; a worker sees to them in order,
but for `Drain`, which takes its time. What a worker says unasked (`Status`) has no number.
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
from kubeproxy.model import Address, FrontendName
from kubeproxy.model.errors import KubeproxyError

HEADER = struct.Struct("!IH")
BODY_LIMIT = 64 << 20
"""Bytes. Ten thousand frontends' counters take two million; who announces more than this means something else."""
DESCRIPTORS_LIMIT = 253
"""The kernel passes no more at once (SCM_MAX_FD in net/scm.h)."""
ROOM_BYTES = 128 << 10
"""Room for what comes in at once. Most frames are far shorter; one that is longer gets what it needs."""


class GarbledError(KubeproxyError):
    """The other side of the channel sent what is no frame of ours."""


# From the control process.


class Apply(Struct, frozen=True, tag=True, array_like=True):
    """Put these into effect, in order. Each `Listen` comes with a socket, in the same order; one for a frontend that is
    listened for already says: on this socket, too, until `ClosePrevious`."""

    number: int
    messages: tuple[Message, ...]


class ClosePrevious(Struct, frozen=True, tag=True, array_like=True):
    """Listen no more on the sockets that others have taken the place of."""

    number: int
    frontends: tuple[FrontendName, ...]


class About(StrEnum):
    """What can be asked."""

    COUNTERS = "counters"
    WORKER_STATUS = "worker_status"
    EJECTED = "ejected"
    ENDED = "ended"
    BINDINGS = "bindings"


class Ask(Struct, frozen=True, tag=True, array_like=True):
    """Tell."""

    number: int
    about: About


class PreviewRequest(Struct, frozen=True, tag=True, array_like=True):
    """Tell what would become of a client's next connection."""

    number: int
    frontend: FrontendName
    client: Address


class StopAccepting(Struct, frozen=True, tag=True, array_like=True):
    """Take who waits already, then nobody more."""

    number: int


class Drain(Struct, frozen=True, tag=True, array_like=True):
    """Answer when the connections open now have ended, or when the time is over."""

    number: int
    grace_s: float


class End(Struct, frozen=True, tag=True, array_like=True):
    """Cut off what is open, and end."""

    number: int


# From a worker.


class Done(Struct, frozen=True, tag=True, array_like=True):
    """It is in effect, but for these."""

    number: int
    open: int
    failures: tuple[tuple[FrontendName, str], ...] = ()


class CountersReply(Struct, frozen=True, tag=True, array_like=True):
    """The counters that have changed since they were last told of; `more` of them are to come in another of the same
    number, and only the last is the answer. Number 0: unasked, for nobody will be able to ask again."""

    number: int
    open: int
    counters: tuple[tuple[FrontendName, Counters], ...]
    more: bool = False


class WorkerStatusReply(Struct, frozen=True, tag=True, array_like=True):
    """How it is doing."""

    number: int
    open: int
    worker_status: WorkerStatus


class EjectedReply(Struct, frozen=True, tag=True, array_like=True):
    """The endpoints that are passed over."""

    number: int
    open: int
    ejected: tuple[tuple[FrontendName, tuple[EjectedEndpoint, ...]], ...]


class Ends(Struct, frozen=True, tag=True, array_like=True):
    """The connections that have ended since this was last asked."""

    number: int
    open: int
    ended: tuple[Ended, ...]


class PreviewReply(Struct, frozen=True, tag=True, array_like=True):
    """This would become of it; None: the frontend is not served."""

    number: int
    open: int
    preview: BalancePreview | None


class Bound(Struct, frozen=True, tag=True, array_like=True):
    """Clients that have been bound to an endpoint, or seen again, since this was last asked; more are to come in others
    of the same number, of which only the last, with None, is the answer."""

    number: int
    open: int
    remembered: RestoreBindings | None = None


class Drained(Struct, frozen=True, tag=True, array_like=True):
    """So many are left."""

    number: int
    open: int
    left: int


class Status(Struct, frozen=True, tag=True, array_like=True):
    """Unasked: so many clients are being served or dialed for."""

    open: int


Request = Apply | ClosePrevious | Ask | PreviewRequest | StopAccepting | Drain | End
Answer = Done | CountersReply | WorkerStatusReply | EjectedReply | Ends | PreviewReply | Bound | Drained
Report = Answer | Status
Frame = Request | Report

F = TypeVar("F", Request, Report)

_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame, descriptors: int = 0) -> bytes:
    """A frame as bytes, for so many descriptors beside it."""
    body = _encoder.encode(frame)
    return HEADER.pack(len(body), descriptors) + body


class Decoder(Generic[F]):
    """Bytes as they come in -> frames of one direction, each with the number of its descriptors.

    The bytes are put where they stay until they are decoded: into `room`, which is there from the start. So what has
    come is not lost where there is no memory for what is made of it."""

    def __init__(self, kind: object) -> None:
        """`kind` is `Request` or `Report`."""
        self._decoder: msgspec.msgpack.Decoder[F] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray(ROOM_BYTES)
        self._start = self._end = 0
        """What is in the buffer and not decoded."""

    @property
    def room(self) -> memoryview:
        """Where the next bytes are to be put; never empty when `frames` has come to its end."""
        return memoryview(self._buffer)[self._end :]

    def frames(self, arrived: int) -> Iterator[tuple[F, int]]:
        """The frames that are complete with so many bytes more. MemoryError: there was none for the next frame, or for
        more room; what has not been given yet is given the next time. GarbledError at what is no frame; nothing can
        follow it."""
        self._end += arrived
        while (size := self._next_size()) <= self._end - self._start:
            frame, descriptors = self._decode(self._start + HEADER.size, size - HEADER.size)
            self._start += size
            yield frame, descriptors
        self._make_room(size)

    def _next_size(self) -> int:
        """Bytes of the next frame, as far as it is known."""
        if self._end - self._start < HEADER.size:
            return HEADER.size
        length, descriptors = HEADER.unpack_from(self._buffer, self._start)
        if length > BODY_LIMIT or descriptors > DESCRIPTORS_LIMIT:
            raise GarbledError(f"a frame of {length} bytes and {descriptors} descriptors is beyond all bounds")
        return HEADER.size + int(length)

    def _decode(self, start: int, length: int) -> tuple[F, int]:
        _, descriptors = HEADER.unpack_from(self._buffer, start - HEADER.size)
        try:
            with memoryview(self._buffer) as whole, whole[start : start + length] as body:
                return self._decoder.decode(body), descriptors
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError) as error:
            raise GarbledError(f"not a frame of ours: {error}") from error

    def _make_room(self, size: int) -> None:
        """For the rest of a frame of that size; what an earlier, longer one needed is given back."""
        rest, wanted = self._end - self._start, max(ROOM_BYTES, size)
        buffer = self._buffer if len(self._buffer) == wanted else bytearray(wanted)
        if self._start or buffer is not self._buffer:
            memoryview(buffer)[:rest] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, rest
