"""A worker as the control process sees it: a child process, and the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from kubeproxy.dataplane.interface import Counters
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.protocol import (
    Answer,
    Bound,
    CountersReply,
    Drain,
    Drained,
    GarbledError,
    Report,
    Request,
    Status,
)
from kubeproxy.model import FrontendName

BEAT_S = 1.0
"""How often we look whether a worker still says something; it does so once a second, unasked."""
SILENT_BEATS = 5
"""One that has said nothing for so many is stopped, or hangs, and the clients that the kernel deals to it wait in vain:
it is killed, and another takes its place. Not seconds: while this very process is stopped nobody is to blame."""
ANSWER_BEATS = 30
"""One that talks but has not answered by then will not."""
HEAR_AGAIN_S = 0.1
"""How long nothing is heard of it when there was no memory for what it says."""
REAP_LOOK_S = 0.01
"""How often we look whether a process whose channel has ended has ended, too."""
REAP_S = 2.0
"""How long it may take to; then it is killed."""


def command(fd: int, *, number: int, run: str, owner_prefix: str) -> list[str]:
    """What starts a worker whose end of the channel is `fd`."""
    arguments = [str(fd), str(number), run, owner_prefix]
    # -P: nothing is imported from where the operator happens to be.
    return [sys.executable, "-P", "-m", "kubeproxy.dataplane.workers.main", *arguments]


class WorkerProcess:
    """Started when made. `gone` is done when it serves no more, with the reason; no zombie remains."""

    def __init__(
        self, number: int, make_command: Callable[[int], Sequence[str]], *, inherit: Sequence[int] = ()
    ) -> None:
        """`make_command` gives the program for a descriptor. OSError when it cannot be started."""
        self.number = number
        self.untold: dict[FrontendName, None] = {}
        """What it has yet to be told of, being new."""
        self.in_service = False
        """Whether it has been told everything once."""
        self.open = 0
        """Connections, as last heard."""
        self.counters: dict[FrontendName, Counters] = {}
        """As last heard."""
        self.bound: list[RestoreBindings] = []
        """What it has told of clients that stay with an endpoint; whoever takes note of it clears it."""
        self._forgotten: dict[FrontendName, int] = {}
        """Up to which request the counters of those who have left are on their way, in the order of these."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[str] = self._loop.create_future()
        self.reaped: asyncio.Future[None] = self._loop.create_future()
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._silent = 0
        """Beats since it last said something."""
        self._has_spoken = False
        self._killed_for: str | None = None
        self._writing = False
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    make_command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *inherit],
                )
        except BaseException:
            ours.close()
            raise
        self._channel: Channel[Report] | None = Channel(ours, Report)
        self._loop.add_reader(ours, self._on_readable)
        self._beating = self._loop.call_later(BEAT_S, self._beat)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def request(
        self, make: Callable[[int], Request], sockets: Sequence[socket.socket] = ()
    ) -> asyncio.Future[Answer | None]:
        """Ask for what `make` makes of a number, and pass it sockets, which may be closed then; the answer, or None
        when the worker has gone instead."""
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._number += 1
        request = make(self._number)
        pending = _Pending(future, patient=isinstance(request, Drain))
        if self._channel is None:
            pending.resolve(None)
            return future
        self._pending[self._number] = pending
        try:
            self._channel.send(request, [sock.fileno() for sock in sockets])
        except OSError as error:
            self._end(f"its channel is broken: {error.strerror or error}")
        except MemoryError:  # it was never asked, and so will never answer
            del self._pending[self._number]
            raise
        else:
            self._watch_writing()
        return future

    def forget(self, name: FrontendName) -> None:
        """Its counters, those on the way included: the frontend is not served any more, and may begin anew. The worker
        is to be told with the next request."""
        self.counters.pop(name, None)
        self._forgotten.pop(name, None)
        self._forgotten[name] = self._number

    def kill(self, reason: str) -> None:
        """End it at once."""
        self._killed_for = self._killed_for or reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _beat(self) -> None:
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        self._silent += 1
        if self._has_spoken and self._silent > SILENT_BEATS:
            self.kill(f"it has said nothing for {SILENT_BEATS * BEAT_S:g} s")
        for pending in self._pending.values():
            pending.beats += not pending.patient
            if pending.beats > ANSWER_BEATS:
                self.kill(f"no answer within {ANSWER_BEATS * BEAT_S:g} s")

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
            self._end(f"its channel is broken: {error.strerror or error}")
        else:
            self._watch_writing()

    def _on_readable(self) -> None:
        if self._channel is None:
            return
        try:
            for report, _ in self._channel.receive():
                if not self.gone.done():
                    self._take(report)
        except GarbledError as error:
            self.kill(f"it makes no sense any more: {error}")
            self._end("")
        except EOFError:
            self._end("")
        except OSError as error:
            self._end(f"its channel is broken: {error.strerror or error}")
        except MemoryError:  # it has said something, and is not to blame that we cannot hear it
            self._silent = 0
            self._loop.remove_reader(self._channel.sock)
            self._loop.call_later(HEAR_AGAIN_S, self._hear_again)

    def _hear_again(self) -> None:
        """There may be memory now for what has come."""
        if self._channel is not None:
            self._loop.add_reader(self._channel.sock, self._on_readable)
            self._on_readable()

    def _take(self, report: Report) -> None:
        self._silent, self._has_spoken = 0, True
        self.open = report.open
        if isinstance(report, Status):
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
        if isinstance(report, Bound) and report.remembered is not None:
            self.bound.append(report.remembered)
            return
        if not isinstance(report, Drained):  # all others come in the order of the requests
            for name in list(takewhile(lambda name: self._forgotten[name] < report.number, self._forgotten)):
                del self._forgotten[name]
        if (pending := self._pending.pop(report.number, None)) is not None:
            pending.resolve(report)

    def _end(self, reason: str) -> None:
        """The channel is over. The process is, too, or will be soon."""
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
        self._reap(reason, self._loop.time() + REAP_S)

    def _reap(self, reason: str, until: float) -> None:
        status = self._process.poll()
        if status is None:
            if self._loop.time() >= until:
                self.kill(reason or "it closed its channel")
            self._loop.call_later(REAP_LOOK_S, self._reap, reason, until)
            return
        self.open = 0
        self.reaped.set_result(None)
        if not self.gone.done():
            self.gone.set_result(self._killed_for or _ending(status) or reason)


class _Pending:
    """A question that waits for its answer."""

    __slots__ = ("_future", "beats", "patient")

    def __init__(self, future: asyncio.Future[Answer | None], *, patient: bool) -> None:
        self._future = future
        self.patient = patient
        self.beats = 0

    def resolve(self, answer: Answer | None) -> None:
        if not self._future.done():  # whoever asked may have been cancelled
            self._future.set_result(answer)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


async def all_reaped(workers: Iterable[WorkerProcess], *, within_s: float) -> None:
    """Back when their processes have ended, by force if they take longer."""
    waiting = [worker.reaped for worker in workers]
    if waiting and (late := (await asyncio.wait(waiting, timeout=within_s))[1]):
        for worker in workers:
            worker.kill("it did not end")
        await asyncio.wait(late)
