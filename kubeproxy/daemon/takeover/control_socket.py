"""The abstract Unix socket of a control process for other processes of this network namespace.

Each control process binds a name of its own, ``kubeproxy/control/KEY``, from its start until another process has taken
over. KEY is the time since boot and a random number, so no other user can bind the name first, and names order
processes by age. Workers do not inherit the socket, so a name ends with its control process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from kubeproxy.runtime.abstract_sockets import listening, uid_of
from kubeproxy.runtime.threads import in_thread

PREFIX: Final = "kubeproxy/control/"
BACKLOG: Final = 1024
BATCH: Final = 64
PAUSE_S: Final = 0.01
"""The pause after BATCH accepted connections: at most 6,400 connections a second, a few percent of a core."""
PATIENCE_S: Final = 30.0
"""How long a connect waits while the queue is full."""
_ATTEMPT_US: Final = 250_000
_TIMEVAL: Final = struct.Struct("@ll")


class ControlSocket:
    """The control socket of this process."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.name = ""
        """Empty until `listen`."""
        self._sock: socket.socket | None = None
        self._on_peer: Callable[[socket.socket], None] = socket.socket.close
        self._pause: asyncio.TimerHandle | None = None

    def listen(self, on_peer: Callable[[socket.socket], None]) -> None:
        """Bind the name, and pass connections of our user to `on_peer`; those of other users are closed at once."""
        self.name = f"{self._prefix}{time.clock_gettime_ns(time.CLOCK_BOOTTIME):016x}-{uuid4().hex}"
        self._on_peer = on_peer
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock.bind(f"\0{self.name}")
        self._sock.listen(BACKLOG)
        self._resume()

    @property
    def open(self) -> bool:
        """Whether the name is bound."""
        return self._sock is not None

    def others(self) -> list[str]:
        """The names of other control processes of our user, the newest first. OSError: the kernel cannot list them."""
        return sorted(listening(self._prefix) - {self.name}, reverse=True)

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
                break  # no descriptor, or no memory: try again after the pause
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


async def connect(name: str, *, within_s: float = PATIENCE_S) -> socket.socket:
    """A non-blocking connection to a name. TimeoutError when its queue stays full; OSError when it refuses."""
    deadline = time.monotonic() + within_s

    def wait_for_room() -> socket.socket:
        # In a thread, because the kernel queues only blocking connects while the backlog is full; a non-blocking one
        # fails with EAGAIN, which uvloop takes for success.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, _ATTEMPT_US))
            while True:
                try:
                    sock.connect(f"\0{name}")
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise TimeoutError("its queue stays full") from None
                else:
                    sock.setblocking(False)
                    return sock
        except BaseException:
            sock.close()
            raise

    return await in_thread(wait_for_room)
