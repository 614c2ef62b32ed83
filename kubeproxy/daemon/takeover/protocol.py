"""The messages between two control processes, and how they are sent.

Each message is a JSON object on a line of its own, and ``type`` names its kind. Both sides state their protocol version
in their first message::

    new instance   {"type": "hello", "protocol": 2, "pid": 42, "version": "0.1.0"}    and a challenge: own
    owner          {"type": "prove", "protocol": 2, "pid": 41, "version": "0.1.0"}    and a challenge: take, or stop
    new instance   {"type": "proof"}
    owner          {"type": "accepted", "services": 5, "sources": ["manifests /etc/kubeproxy/manifests"]}

If nobody can take over from the owner now, it answers ``busy`` instead of ``prove`` or ``accepted``, and closes the
connection.

With equal versions the owner challenges the new instance to ``take``, and then obeys ``recall``, ``hold``, ``resume``
and ``take``. With different versions the owner challenges the new instance to ``stop``; the new instance sends one
request, and the owner ends. The owner's workers keep serving as orphans (`orphaned_worker`). An owner without workers
drains first, as it does after SIGTERM::

    new instance   {"type": "stop"}
    owner          {"type": "stopping", "within_s": 30.0}

FROZEN: the messages spelled out here, their fields, their order (no message is sent before the answer to the last), the
challenges with what they are bound to (`peer_capability`) and the socket's name (`control_socket`) are the same in
every version, now and later. A field may be added, never removed.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from kubeproxy.dataplane.workers.takeover_messages import (
    LINE_BYTES,
    PROTOCOL,
    Bindings,
    Done,
    OrphanHello,
    Recall,
    T,
    TakeoverMessage,
    decode,
    encode,
)


class Hello(TakeoverMessage, frozen=True):
    """The first message of a new instance. Frozen."""

    protocol: int
    pid: int
    version: str
    """The program's version, for the log."""


class Action(StrEnum):
    """What an `Order` asks for."""

    EJECT = "eject"
    """Send no new clients to an endpoint for a while."""
    RESTORE = "restore"
    """Send clients to an endpoint again, whether an operator took it out or it was ejected for failures."""
    PROBED = "probed"
    """Send clients to an endpoint again if it was ejected for failures, because it has answered the caller's probe."""
    DRAIN = "drain"
    """Wait until a pod has no connections, and meanwhile send it no new ones."""
    RETRY = "retry"
    """Ask all sources again now, without waiting for their backoff."""


class Order(TakeoverMessage, frozen=True):
    """The first message of an operator's command (`order`)."""

    protocol: int
    action: Action
    endpoint: str = ""
    """The endpoint as ``IP:PORT``, or a pod's address. It is empty if the action needs neither."""
    for_s: float = 0.0
    """For how many seconds to take an endpoint out, or to wait for a pod."""
    caller: str = ""
    """Who gave the order, as text for the log and the status."""


class Busy(TakeoverMessage, frozen=True):
    """Tells that nobody can take over from this process now, and that the peer should ask again later. Frozen."""

    protocol: int
    looking: bool = False
    """Whether the process is itself a new instance that is looking for an owner."""


class Prove(TakeoverMessage, frozen=True):
    """The owner's first message, which demands proof of CAP_NET_ADMIN. Frozen."""

    protocol: int
    pid: int
    version: str


class Proof(TakeoverMessage, frozen=True):
    """Tells that the challenge of `Prove` is answered. Frozen."""


class Stop(TakeoverMessage, frozen=True):
    """Asks the owner to end and to leave its workers to the new instance. An owner without workers stops as after
    SIGTERM: it drains, makes the kernel drop first packets of new clients, and ends. Frozen."""


class Stopping(TakeoverMessage, frozen=True):
    """The answer to `Stop`. Frozen."""

    within_s: float
    """How long it may take until the owner has ended."""


class Accepted(TakeoverMessage, frozen=True, omit_defaults=True):
    """Tells that the new instance may send requests, and what the owner serves (`serves_enough`). Frozen."""

    services: int = -1
    """The number of Services of all sources, or a negative number if unknown."""
    sources: tuple[str, ...] = ()
    """A text for each source, or empty if unknown."""


class Hold(TakeoverMessage, frozen=True):
    """Asks the owner to stop changing the rules."""


class Resume(TakeoverMessage, frozen=True):
    """Asks the owner to maintain the rules again."""


class Take(TakeoverMessage, frozen=True, omit_defaults=True):
    """Tells that the rules redirect to the new instance. The owner releases its ports and its name, moves connections,
    and drains the rest."""

    successor: str = ""
    """The control socket of the new instance, to which workers connect. It is empty if connections cannot move."""


class Refused(TakeoverMessage, frozen=True):
    """Tells that a request of type `request` was refused."""

    request: str
    reason: str


Request = Recall | Hold | Resume | Take | Stop
Answer = Accepted | Busy | Stopping | Bindings | Done | Refused

HELLOS: Final[msgspec.json.Decoder[Hello | OrphanHello | Order]] = msgspec.json.Decoder(Hello | OrphanHello | Order)
FIRST_ANSWERS: Final[msgspec.json.Decoder[Busy | Prove]] = msgspec.json.Decoder(Busy | Prove)
PROOFS: Final[msgspec.json.Decoder[Proof]] = msgspec.json.Decoder(Proof)
REQUESTS: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
ANSWERS: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def type_of(message: TakeoverMessage) -> str:
    """Return the ``type`` of a message."""
    return str(message.__struct_config__.tag)


def hello(version: str) -> Hello:
    """Return the first message of this process."""
    return Hello(PROTOCOL, os.getpid(), version)


async def send(writer: asyncio.StreamWriter, message: TakeoverMessage) -> None:
    """Send a message. Raise OSError if the connection has ended."""
    if writer.is_closing():
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    writer.write(encode(message))
    await writer.drain()


async def receive(reader: asyncio.StreamReader, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Return the next message, or None at the end of the stream. Raise ValueError for an invalid message."""
    line = await reader.readline()
    return decode(line, decoder) if line.endswith(b"\n") else None


def send_first(sock: socket.socket, message: TakeoverMessage, descriptors: Sequence[int] = ()) -> None:
    """Send a message on a non-blocking socket that has no stream yet, or whose stream has nothing left to send. Raise
    OSError if the connection has ended."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    # A line is always short enough for the empty buffer of a socket.
    sock.sendmsg([encode(message)], rights, socket.MSG_NOSIGNAL)


async def receive_first(sock: socket.socket, decoder: msgspec.json.Decoder[T]) -> tuple[T, list[int]]:
    """Return the first message on a socket that has no stream yet, together with its descriptors, which the caller has
    to close.

    Raise OSError if the connection breaks or ends, and ValueError for an invalid message.
    """
    descriptors: list[int] = []
    line = b""
    try:
        while not line.endswith(b"\n"):
            await _readable(sock)
            data, ancillary, _, _ = sock.recvmsg(
                LINE_BYTES, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    passed = array.array("i")
                    passed.frombytes(payload[: len(payload) - len(payload) % passed.itemsize])
                    descriptors += passed
            line += data
            if not data:
                break
            if len(line) > LINE_BYTES or len(descriptors) > 1:
                raise ValueError(f"expected one line and one descriptor at most, got {line[:80]!r}")
        if not line:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return decode(line, decoder), descriptors
    except BaseException:
        close(descriptors)
        raise


def close(descriptors: Sequence[int]) -> None:
    """Close the descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock.fileno())
