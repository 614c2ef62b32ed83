"""Starts the rescue process and holds the control process's end of the channel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from kubeproxy.model import Protocol, Target
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.rescue.protocol import (
    BEAT_S,
    FLOWS_PER_MESSAGE,
    MESSAGE_BYTES,
    Beat,
    Failed,
    Freed,
    FreedFlow,
    GarbledMessageError,
    Started,
    decode_message,
    encode,
)
from kubeproxy.runtime.child_process import ChildProcess

START_S: Final = 10.0
"""How long to wait for the first message."""
SILENT_BEATS: Final = 4
"""After this many beats (one second) without a message, the process counts as stopped, and the rules are made inert."""
HUNG_BEATS: Final = 40
"""After this many beats (ten seconds) without a message, the process is killed and replaced. The time lets an operator
stop the process to look at it."""
REPORTS_PER_TURN: Final = 256


def command(fd: int, group: int) -> list[str]:
    """Return the command line of a rescue process. `fd` is its end of the channel; `group` is the NFLOG group to try
    first."""
    # -P prevents imports from the current directory.
    return [sys.executable, "-P", "-m", "kubeproxy.rescue.main", str(fd), str(group)]


class RescueProcess:
    """A running rescue process, started by the constructor. `ended` is done when the process has exited, with the
    reason."""

    def __init__(self, group: int, *, on_failed: Callable[[Failed], None]) -> None:
        """Start the process. Raise OSError if it cannot start."""
        self.group: int | None = None
        """The NFLOG group that the process reads, or None if it does not work yet."""
        self.unfiltered: str | None = None
        """Why the process runs without a system call filter, or None if it has one."""
        self.shut_out: str | None = None
        """Why clients' packets cannot enter this node again, or None if they can."""
        self.counts = RescueCounts()
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self._loop.create_future()
        """Done when `group` is known, or the process has exited."""
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._silent = 0
        self._process = ChildProcess(lambda fd: command(fd, group), kind=socket.SOCK_SEQPACKET)
        self._channel: socket.socket | None = self._process.channel
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._on_readable)
        self._beating = self._loop.call_later(BEAT_S, self._beat)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def well(self) -> bool:
        """Return whether the process works: it reads its group, and has sent a message within the last second."""
        return self.group is not None and self._channel is not None and self._silent < SILENT_BEATS

    def freed(self, protocol: Protocol, endpoint: Target, flows: Sequence[FreedFlow]) -> None:
        """Have the process send the first packets of these deleted flows again. If its socket is full, clients
        retransmit them themselves."""
        rest = iter(flows)
        while self._channel is not None and (some := tuple(islice(rest, FLOWS_PER_MESSAGE))):
            with contextlib.suppress(OSError):  # The end of the process is noticed by reading its channel.
                self._channel.send(encode(Freed(protocol, endpoint, some)))

    def kill(self, reason: str) -> None:
        """Kill the process. The reason of the first call is kept."""
        self._process.kill(reason)

    async def close(self) -> None:
        """End the process, and return when it has exited."""
        self.kill("no longer needed")
        await asyncio.wait((self.ended,))

    def _beat(self) -> None:
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        if self._process.has_exited:
            self._end()
            return
        # Beats are counted instead of seconds, because beats stop while the control process itself is stopped.
        self._silent += 1
        if self._silent > (HUNG_BEATS if self.group is not None else START_S / BEAT_S):
            self.kill(f"silent for {self._silent * BEAT_S:g} s")

    def _on_readable(self) -> None:
        for _ in range(REPORTS_PER_TURN):
            if self._channel is None:
                return
            try:
                data = self._channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            try:
                message = decode_message(data)
            except GarbledMessageError as error:
                self.kill(str(error))
                self._end()
                return
            self._silent = 0
            match message:
                case Started(group, unfiltered, shut_out):
                    self.group, self.unfiltered, self.shut_out = group, unfiltered, shut_out
                    if not self.started.done():
                        self.started.set_result(None)
                case Beat(counts):
                    self.counts = counts
                case Failed():
                    self._on_failed(message)

    def _end(self) -> None:
        if self._channel is None:
            return
        self._beating.cancel()
        self._loop.remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        self._process.reap("closed its channel", self._on_exit)

    def _on_exit(self, ending: str) -> None:
        if not self.started.done():
            self.started.set_result(None)
        if not self.ended.done():
            self.ended.set_result(ending)
