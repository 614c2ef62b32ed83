"""What processes of ours say to one another over a Unix socket: one JSON object per line, in both directions.

Whoever is of another version may say what is not known here; that is for the listener to pass over.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from kubeproxy.dataplane.messages import RestoreBindings

LINE_BYTES: Final = 4096

Message = Mapping[str, Any]


async def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """OSError when the other side has gone."""
    if writer.is_closing():
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    writer.write(msgspec.json.encode(message) + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end. ValueError for what is none."""
    line = await reader.readline()
    return _decode(line) if line.endswith(b"\n") else None


def _decode(line: bytes) -> Message:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected an object, got {line[:80]!r}") from error


def send_first(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """A message and descriptors, over a non-blocking socket that no stream uses yet. OSError when the peer has gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    # A line is shorter than what an empty socket takes at once.
    sock.sendmsg([msgspec.json.encode(message) + b"\n"], rights, socket.MSG_NOSIGNAL)


async def receive_first(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """The first message over a socket that no stream uses yet, and its descriptors, which are the caller's to close.
    None at the end; ValueError for what is none; OSError."""
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
        return (_decode(line) if line else None), descriptors
    except BaseException:
        close(descriptors)
        raise


def close(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
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


def told(remembered: RestoreBindings) -> Message:
    """Whom another process is to know, to be said."""
    return {"bound": remembered}


def heard(message: Message) -> RestoreBindings | None:
    """Whom another process knows; None: the message is about something else, or not to be understood."""
    try:
        return msgspec.convert(message.get("bound"), RestoreBindings)
    except msgspec.ValidationError:
        return None
