"""A worker as seen by the control process: its child process and its channel."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from kubeproxy.dataplane.interface import Counters
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.protocol import (
    BindingsReply,
    CountersReply,
    Drain,
    DrainReply,
    GarbledError,
    Heartbeat,
    MoveReply,
    MoveTo,
    Reply,
    Report,
    Request,
)
from kubeproxy.model import FrontendName
from kubeproxy.runtime.child_process import ChildProcess

BEAT_S = 1.0
"""How often, in seconds, the control process checks that a worker has sent something. A worker sends its status once a
second."""
SILENT_BEATS = 5
"""After this many beats without a message, a worker is killed and replaced. It is stopped or hangs, and the clients
that the kernel assigns to it wait in vain. Beats are counted instead of seconds, because beats stop while the control
process itself is stopped."""
REPLY_BEATS = 30
"""After this many beats, a worker that sends its status but has not replied to a request is killed."""
READ_AGAIN_S = 0.1
"""For how many seconds a channel is not read after a MemoryError."""


def command(fd: int, *, number: int, counts_fd: int, marker: int | None, owner_prefix: str) -> list[str]:
    """Return the command line of a worker. `fd` is its end of the channel, `counts_fd` the table of `Columns`, and
    `marker` the marker of its run."""
    arguments = [str(fd), str(number), str(counts_fd), "" if marker is None else str(marker), owner_prefix]
    # -P prevents imports from the current directory.
    return [sys.executable, "-P", "-m", "kubeproxy.dataplane.workers.main", *arguments]


class WorkerProcess:
    """A running worker process, started by the constructor. `stopped` is done when the worker has stopped serving, with
    the reason. `reaped` is done when its process has exited."""

    def __init__(
        self, number: int, make_command: Callable[[int], Sequence[str]], *, inherit: Sequence[int] = ()
    ) -> None:
        """Start the process. `make_command` returns the command line for a descriptor. Raise OSError if the process
        cannot start."""
        self.number = number
        self.unsent: dict[FrontendName, None] = {}
        """The frontends that still have to be sent to a new worker."""
        self.in_service = False
        """Whether the worker has applied the full state."""
        self.open = 0
        """The number of open connections, as last reported."""
        self.counters: dict[FrontendName, Counters] = {}
        """The counters, as last reported."""
        self.bindings: list[RestoreBindings] = []
        """The affinity bindings reported so far. The reader clears the list."""
        self._forgotten: dict[FrontendName, int] = {}
        """The removed frontends, each with the number of the last request whose reply may still contain its counters,
        ordered by that number."""
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[str] = self._loop.create_future()
        self.reaped: asyncio.Future[None] = self._loop.create_future()
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._silent = 0
        """The number of beats since the worker's last report."""
        self._has_reported = False
        self._writing = False
        self._process = ChildProcess(make_command, inherit=inherit)
        self._channel: Channel[Report] | None = Channel(self._process.channel, Report)
        self._loop.add_reader(self._process.channel, self._on_readable)
        self._beating = self._loop.call_later(BEAT_S, self._beat)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def request(
        self, make: Callable[[int], Request], sockets: Sequence[socket.socket] = ()
    ) -> asyncio.Future[Reply | None]:
        """Send a request with sockets. The result is the reply, or None if the worker stops. `make` is called with the
        request's number and returns the request. The caller may close the sockets when this method returns."""
        future: asyncio.Future[Reply | None] = self._loop.create_future()
        self._number += 1
        request = make(self._number)
        pending = _Pending(future, patient=isinstance(request, Drain | MoveTo))
        if self._channel is None:
            pending.resolve(None)
            return future
        self._pending[self._number] = pending
        try:
            self._channel.send(request, [sock.fileno() for sock in sockets])
        except OSError as error:
            self._end(f"channel failed: {error.strerror or error}")
        except MemoryError:  # The request was not sent, so there will be no reply.
            del self._pending[self._number]
            raise
        else:
            self._watch_writing()
        return future

    def forget(self, name: FrontendName) -> None:
        """Remove a frontend's counters, and ignore those in replies to requests that were already sent.

        The same frontend may be served again later. The next request must remove it from the worker."""
        self.counters.pop(name, None)
        self._forgotten.pop(name, None)
        self._forgotten[name] = self._number

    def kill(self, reason: str) -> None:
        """Kill the process. The reason of the first call is kept."""
        self._process.kill(reason)

    def _beat(self) -> None:
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        self._silent += 1
        if self._has_reported and self._silent > SILENT_BEATS:
            self.kill(f"silent for {SILENT_BEATS * BEAT_S:g} s")
        for pending in self._pending.values():
            pending.beats += not pending.patient
            if pending.beats > REPLY_BEATS:
                self.kill(f"no reply within {REPLY_BEATS * BEAT_S:g} s")

    def _watch_writing(self) -> None:
        if self._channel is not None and self._channel.congested != self._writing:
            self._writing = self._channel.congested
            if self._writing:
                self._loop.add_writer(self._channel.sock, self._on_writable)
            else:
                self._loop.remove_writer(self._channel.sock)

    def _on_writable(self) -> None:
        if self._channel is None:
            return
        try:
            self._channel.flush()
        except OSError as error:
            self._end(f"channel failed: {error.strerror or error}")
        else:
            self._watch_writing()

    def _on_readable(self) -> None:
        if self._channel is None:
            return
        try:
            for report, _ in self._channel.receive():
                if not self.stopped.done():
                    self._take(report)
        except GarbledError as error:
            self.kill(f"invalid frame: {error}")
            self._end("")
        except EOFError:
            self._end("")
        except OSError as error:
            self._end(f"channel failed: {error.strerror or error}")
        except MemoryError:  # The worker is alive, but this process lacks the memory to read its report.
            self._silent = 0
            self._loop.remove_reader(self._channel.sock)
            self._loop.call_later(READ_AGAIN_S, self._read_again)

    def _read_again(self) -> None:
        """Read the channel again after a MemoryError."""
        if self._channel is not None:
            self._loop.add_reader(self._channel.sock, self._on_readable)
            self._on_readable()

    def _take(self, report: Report) -> None:
        self._silent, self._has_reported = 0, True
        self.open = report.open
        if isinstance(report, Heartbeat):
            return
        if isinstance(report, CountersReply):
            forgotten = self._forgotten
            self.counters.update(
                (name, counters)
                for name, counters in report.counters
                if name not in forgotten or report.number > forgotten[name]
            )
            if report.more:
                return
        if isinstance(report, BindingsReply) and report.bindings is not None:
            self.bindings.append(report.bindings)
            return
        if not isinstance(report, DrainReply | MoveReply):  # All other replies are in the order of the requests.
            for name in list(takewhile(lambda name: self._forgotten[name] < report.number, self._forgotten)):
                del self._forgotten[name]
        if (pending := self._pending.pop(report.number, None)) is not None:
            pending.resolve(report)

    def _end(self, reason: str) -> None:
        """Record that the channel has ended. The process has ended, too, or will soon."""
        if self._channel is None:
            return
        self._beating.cancel()
        self._loop.remove_reader(self._channel.sock)
        if self._writing:
            self._loop.remove_writer(self._channel.sock)
        self._channel.close()
        self._channel = None
        self.in_service = False
        pending, self._pending = list(self._pending.values()), {}
        for each in pending:
            each.resolve(None)
        self._process.reap(reason or "closed its channel", self._on_exit)

    def _on_exit(self, ending: str) -> None:
        self.open = 0
        self.reaped.set_result(None)
        if not self.stopped.done():
            self.stopped.set_result(ending)


class _Pending:
    """A request without a reply so far. If it is patient, it has no time limit."""

    __slots__ = ("_future", "beats", "patient")

    def __init__(self, future: asyncio.Future[Reply | None], *, patient: bool) -> None:
        self._future = future
        self.patient = patient
        self.beats = 0

    def resolve(self, reply: Reply | None) -> None:
        if not self._future.done():  # The requesting task may have been cancelled.
            self._future.set_result(reply)


async def all_reaped(workers: Iterable[WorkerProcess], *, within_s: float) -> None:
    """Wait until the workers' processes have exited. Kill those that take longer than `within_s` seconds."""
    waiting = [worker.reaped for worker in workers]
    if waiting and (late := (await asyncio.wait(waiting, timeout=within_s))[1]):
        for worker in workers:
            worker.kill("did not exit")
        await asyncio.wait(late)
