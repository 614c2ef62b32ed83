"""An orphaned worker, as the owner of the node sees it.

A worker outlives its control process, and keeps serving until the owner's rules are in force. A worker has no
privileges, so any process of our user may claim to be one. So the size of its answers is limited, and only our own
frontends and endpoints in them count (`RestoreBindings`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import structlog

from kubeproxy.daemon.takeover.protocol import receive, send, send_first
from kubeproxy.dataplane.balancing.affinity import AFFINITY_ENTRIES
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.takeover_messages import (
    FROM_ORPHANS,
    MOVES,
    PROTOCOL,
    Bindings,
    Done,
    Move,
    Moved,
    OrphanHello,
    Recall,
    Retire,
)

log = structlog.get_logger(__name__)

MOVE_S = 10.0
"""How long a worker may take to move its connections before it is told to retire. It continues to move them after
that."""
RECALL_S = 5.0
"""How long a worker may take to answer `Recall`."""


class OrphanedWorker:
    """The connection to one orphaned worker."""

    def __init__(
        self,
        sock: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hello: OrphanHello,
        *,
        can_move: bool,
    ) -> None:
        """`can_move` is true if the worker speaks a version of `Move` that we speak, and has shown the marker of a run
        of kubeproxy."""
        self.pid = hello.pid
        self.can_move = can_move
        """Whether the worker's connections may move to our workers."""
        if not can_move:
            log.warning("orphaned worker: connections stay with it", pid=self.pid, its=hello.moves, ours=MOVES)
        self._sock = sock
        self._same_protocol = hello.protocol == PROTOCOL
        if not self._same_protocol:
            log.warning("orphaned worker: other takeover protocol", pid=self.pid, its=hello.protocol, ours=PROTOCOL)
        self._reader = reader
        self._writer = writer
        self._bindings: list[RestoreBindings] = []
        self._answered = asyncio.Event()
        """Set when an answer is complete, or when the connection has ended."""
        self._moved = asyncio.Event()
        """Set when the worker has moved all connections that it could, or when the control connection has ended."""
        self._room = 0
        """How many more clients the current answer may contain."""

    async def serve(self) -> None:
        """Read the worker's messages until the worker ends. Raise OSError if the connection breaks, and ValueError for
        an invalid message."""
        try:
            while (message := await receive(self._reader, FROM_ORPHANS)) is not None:
                if isinstance(message, Done):
                    self._answered.set()
                elif isinstance(message, Moved):
                    if not self._moved.is_set():
                        log.info(
                            "connections moved here",
                            pid=self.pid,
                            moved=message.moved,
                            left=message.left,
                            still_ms=round(1000 * message.longest_s, 1),
                        )
                    self._moved.set()
                elif isinstance(message, Bindings) and self._room > 0:
                    self._room -= len(message.bound.bindings)
                    self._bindings.append(message.bound)
        finally:
            self._answered.set()
            self._moved.set()

    async def recall(self) -> list[RestoreBindings]:
        """Return the session affinity bindings that the worker sends in time. A worker of another protocol version
        returns none."""
        if self._same_protocol:
            self._answered.clear()
            self._bindings.clear()
            self._room = AFFINITY_ENTRIES
            with contextlib.suppress(OSError):  # The worker may end, or hang, at any time.
                async with asyncio.timeout(RECALL_S):
                    await send(self._writer, Recall())
                    await self._answered.wait()
            self._room = 0
        return self._bindings

    async def move(self, entrances: Entrances) -> None:
        """Have the worker move its connections through these sockets. Return when it has moved what it could, or has
        ended."""
        request = Move(entrances.workers, entrances.count)
        self._moved.clear()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(MOVE_S):
                # No other data is waiting to be sent, because the worker has answered the last request.
                send_first(self._sock, request, [sock.fileno() for sock in entrances.sockets])
                await self._moved.wait()

    async def retire(self) -> None:
        """Tell the worker to stop, because the rules redirect to us. Workers of every protocol version understand
        this."""
        with contextlib.suppress(OSError):  # The worker may end at any time.
            await send(self._writer, Retire())
