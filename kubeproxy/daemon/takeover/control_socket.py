"""The abstract Unix socket of a control process for other processes of this network namespace.

Each control process binds a name of its own, ``kubeproxy/control/KEY``, from its start until another process has taken
over. KEY is the time since boot and a random number. So nobody can bind the name first, and sorting the names sorts the
processes by age. Workers do not inherit the socket, so the name disappears with its control process. The names of
challenges contain this name (`peer_capability`), so the length of the whole name is limited to 107 bytes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import listening, uid_of
from kubeproxy.runtime.threads import in_thread

PREFIX: Final = "kubeproxy/control/"
BACKLOG: Final = 1024
BATCH: Final = 64
PAUSE_S: Final = 0.01
"""The pause in seconds after BATCH accepted connections. It allows 6,400 connections per second, which take a few
percent of a core."""
ROOM_S: Final = 0.25
"""For how many seconds one attempt to connect waits while the queue is full."""
_TIMEVAL: Final = struct.Struct("@ll")


class ControlSocket:
    """The control socket of this process."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.name = ""
        """The socket's name, or empty before `listen`."""
        self._sock: socket.socket | None = None
        self._on_peer: Callable[[socket.socket], None] = socket.socket.close
        self._pause: asyncio.TimerHandle | None = None

    def listen(self, on_peer: Callable[[socket.socket], None]) -> None:
        """Bind the name, and pass connections from our own user to `on_peer`. Connections from other users are closed
        at once."""
        self.name = f"{self._prefix}{time.clock_gettime_ns(time.CLOCK_BOOTTIME):016x}-{os.urandom(8).hex()}"
        self._on_peer = on_peer
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock.bind(f"\0{self.name}")
        self._sock.listen(BACKLOG)
        self._resume()

    @property
    def open(self) -> bool:
        """Return whether the name is bound."""
        return self._sock is not None

    def others(self) -> list[str]:
        """Return the names of other control processes of our user, the newest first. Raise OSError if the kernel cannot
        list them."""
        return sorted(listening(self._prefix) - {self.name}, reverse=True)

    def prove(self, challenge: int, purpose: peer_capability.Purpose) -> bool:
        """Answer a challenge that arrived on this socket, and close its descriptor. Return whether it was answered (see
        `peer_capability.answer`).

        After `close` every challenge is refused, because another process may have bound the name by then.
        """
        if not self.open:
            os.close(challenge)
            return False
        return peer_capability.answer(challenge, purpose, self.name)

    def close(self) -> None:
        """Release the name."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _resume(self) -> None:
        self._pause = None
        if self._sock is not None:
            asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(BATCH):
            if self._sock is None:
                return
            try:
                peer, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:
                break  # Descriptors or memory are exhausted. Try again after the pause.
            try:
                ours = uid_of(peer) == os.geteuid()
            except OSError:
                ours = False
            if ours:
                peer.setblocking(False)
                self._on_peer(peer)
            else:
                peer.close()
        if self._sock is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock.fileno())
            self._pause = loop.call_later(PAUSE_S, self._resume)


class FullError(Exception):
    """Raised if the queue of a control socket is full."""


async def connect(name: str, *, waits_for_room: bool) -> socket.socket:
    """Return a non-blocking connection to a control socket. Raise FullError if its queue is full, and OSError if the
    connection is refused."""
    if waits_for_room:
        return await in_thread(lambda: _connect_waiting(name))
    return _connect(name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))


def _connect_waiting(name: str) -> socket.socket:
    """Connect, and wait up to ROOM_S seconds if the queue is full. The kernel lets only blocking connects wait for
    room."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, int(ROOM_S * 1e6)))
    _connect(name, sock).setblocking(False)
    return sock


def _connect(name: str, sock: socket.socket) -> socket.socket:
    try:
        sock.connect(f"\0{name}")
    except BaseException as error:
        sock.close()
        raise FullError if isinstance(error, BlockingIOError) else error from None
    return sock
