"""A process that moves bytes and does nothing else: an engine on a reactor, told what to do through a channel.

Started by `process` as ``python -m kubeproxy.dataplane.workers.main``; imports little, so that it starts soon and stays
small, and gives up its privileges before it serves anybody.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence

from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.messages import Listen, Message, Tune
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget
from kubeproxy.dataplane.tcp.connection import send_backlogs
from kubeproxy.dataplane.workers import seccomp
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.orphan import Orphan
from kubeproxy.dataplane.workers.protocol import (
    About,
    Answer,
    Apply,
    Ask,
    Bound,
    ClosePrevious,
    CountersReply,
    Done,
    Drain,
    Drained,
    EjectedReply,
    End,
    Ends,
    GarbledError,
    PreviewReply,
    PreviewRequest,
    Request,
    Status,
    StopAccepting,
    WorkerStatusReply,
)
from kubeproxy.model import FrontendName
from kubeproxy.runtime import privileges

EXIT_INTERNAL_ERROR = 70
"""sysexits' EX_SOFTWARE."""
SLICE_S = 0.001
"""How long requests are seen to in one turn; then connections come in between, however much there is to do."""
TOLD_AT_ONCE = 128
"""Frontends whose counters go out in one frame: about 10 kB, some tenths of a millisecond to encode and send."""
LOOK_S = 0.05
"""How often a drain looks whether it is over, and who has no memory for what he is told whether there is some."""
STATUS_S = 1.0
"""How often the control process hears of open connections unasked: so it knows, too, that we are alive."""


class Worker:
    """The process, from its first request to its end."""

    def __init__(self, sock: socket.socket, *, number: int, run: str, owner_prefix: str) -> None:
        """`sock` is this end of the channel; see `orphan` for the others."""
        self._number = number
        self._run = run
        self._owner_prefix = owner_prefix
        self._reactor = Reactor()
        self._context = Context(reactor=self._reactor, budget=DescriptorBudget.of_this_process(), send=send_backlogs)
        self._engine = Engine(
            self._context,
            open_socket=self._open_socket,
            close_socket=self._close_socket,
            rng=random.Random(),
        )
        self._channel: Channel[Request] | None = Channel(sock, Request)
        self._watched = LEVEL
        self._work: deque[Iterator[bool]] = deque()
        """Requests being seen to, the first one first. Each stops after every step, where it may be left off for a
        turn, and says whether it has to be: because something happens at a turn's end only."""
        self._working = False
        self._arriving: deque[int] = deque()
        """The sockets of the messages at hand."""
        self._leaving = False
        self._bindings_told_at = self._reactor.now
        self._reactor.add(sock.fileno(), self._on_channel, LEVEL)
        self._reactor.after(STATUS_S, self._tell_status)
        self._listen_to_signals()

    def live(self) -> None:
        """Serve to the end."""
        self._reactor.run()
        self._engine.close()

    # The channel.

    def _on_channel(self, what: int) -> None:
        if self._channel is None:
            return
        try:
            if what & select.EPOLLOUT:
                self._channel.flush()
            if what & ~select.EPOLLOUT:
                for request, descriptors in self._channel.receive():
                    self._arriving.extend(descriptors)
                    self._work.append(self._see_to(request, len(descriptors)))
        except MemoryError:
            self._context.memory.spend()
            self._working = True  # nothing more is heard until then
            self._reactor.after(LOOK_S, self._hear_again)
            self._watch()
            return
        except GarbledError as error:
            _say(self._number, f"the control process makes no sense any more: {error}")
            self._lose_channel()
        except (EOFError, OSError):
            self._lose_channel()
        self._set_to_work()

    def _hear_again(self) -> None:
        """There may be memory now for what has come."""
        self._working = False
        self._on_channel(select.EPOLLIN)
        self._set_to_work()

    def _set_to_work(self) -> None:
        if self._work and not self._working:
            self._working = True
            self._reactor.again(self._go_on)
        self._watch()

    def _go_on(self) -> None:
        """One slice of the requests at hand."""
        self._working = False
        clock = self._reactor.clock
        until = clock() + SLICE_S
        while self._work:
            turn_has_to_end = next(self._work[0], None)
            if turn_has_to_end is None:
                self._work.popleft()
            elif turn_has_to_end or clock() >= until:
                break
        self._set_to_work()

    def _watch(self) -> None:
        """Hear no more requests while there are some to be seen to: the sockets that come with them are not in the
        budget yet."""
        if self._channel is None:
            return
        events = (0 if self._working else LEVEL) | (select.EPOLLOUT if self._channel.congested else 0)
        if events != self._watched:
            self._watched = events
            self._reactor.watch(self._channel.sock.fileno(), events)

    def _answer(self, frame: Answer | Status) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(frame)
        except OSError:
            self._lose_channel()
        self._watch()

    def _tell_status(self) -> None:
        self._reactor.after(STATUS_S, self._tell_status)
        if self._channel is not None and not self._channel.congested:
            self._answer(Status(self._open))

    @property
    def _open(self) -> int:
        return len(self._context.live)

    def _lose_channel(self) -> None:
        """Nobody tells us anything any more."""
        if self._channel is None:
            return
        self._reactor.remove(self._channel.sock.fileno())
        self._channel.close()
        self._channel = None
        if not self._engine.frontends and not self._work:
            self._reactor.stop()
            return
        Orphan(
            self._reactor,
            owner_prefix=self._owner_prefix,
            run=self._run,
            grace_s=self._context.tune.orphan_grace_s,
            bindings=self._engine.bindings,
            retire=self._leave,
        )

    # What is asked.

    def _see_to(self, request: Request, descriptors: int) -> Iterator[bool]:
        match request:
            case Apply(number, messages):
                listens = sum(isinstance(message, Listen) for message in messages)
                if listens != descriptors:
                    raise GarbledError(f"{listens} frontends to listen for and {descriptors} sockets")
                return self._apply(number, messages)
            case ClosePrevious(number, frontends):
                return self._shed(number, frontends)
            case Ask(number, About.COUNTERS):
                return self._count(number)
            case Ask(number, About.EJECTED):
                return self._tell_ill(number)
            case Ask(number, About.BINDINGS):
                return self._tell_bindings(number)
            case StopAccepting(number):
                return self._stop_accepting(number)
            case Drain(number, grace_s):
                self._drain(number, grace_s)
            case _:
                return self._reply(request)
        return iter(())

    def _reply(self, request: Request) -> Iterator[bool]:
        """To what takes no time, but must not overtake what came before it."""
        match request:
            case Ask(number, About.WORKER_STATUS):
                self._answer(WorkerStatusReply(number, self._open, self._engine.worker_status(worker=self._number)))
            case Ask(number, About.ENDED):
                self._answer(Ends(number, self._open, tuple(self._engine.take_ended())))
            case PreviewRequest(number, frontend, client):
                preview = self._engine.preview(frontend, client, worker=self._number)
                self._answer(PreviewReply(number, self._open, preview))
            case End():
                self._reactor.stop()
        yield from ()

    def _apply(self, number: int, messages: Sequence[Message]) -> Iterator[bool]:
        failures: dict[FrontendName, str] = {}
        at_hand: FrontendName | None = None
        for message in messages:
            about = None if isinstance(message, Tune) else message.frontend
            if about != at_hand:
                yield False  # in between, or clients would meet a frontend that knows half of what there is to know
                at_hand = about
            if isinstance(message, Listen) and self._engine.serves(message.frontend):
                if (failure := self._engine.succeed(message)) is not None:
                    failures[message.frontend] = failure
            else:
                failures |= self._engine.handle((message,))
        yield True  # at the end of the turn sockets are closed
        self._answer(Done(number, self._open, tuple(failures.items())))

    def _shed(self, number: int, frontends: Sequence[FrontendName]) -> Iterator[bool]:
        for frontend in frontends:
            self._engine.close_previous(frontend)
            yield False
        yield True
        self._answer(Done(number, self._open))

    def _count(self, number: int) -> Iterator[bool]:
        changed: list[tuple[FrontendName, Counters]] = []
        for news in self._engine.news():
            if news is not None:
                changed.append(news)
                if len(changed) == TOLD_AT_ONCE:
                    self._answer(CountersReply(number, self._open, tuple(changed), more=True))
                    changed.clear()
            yield False
        self._answer(CountersReply(number, self._open, tuple(changed)))

    def _tell_ill(self, number: int) -> Iterator[bool]:
        found: list[tuple[FrontendName, tuple[EjectedEndpoint, ...]]] = []
        for ejected in self._engine.ejected(worker=self._number):
            if ejected is not None:
                found.append(ejected)
            yield False
        self._answer(EjectedReply(number, self._open, tuple(found)))

    def _tell_bindings(self, number: int) -> Iterator[bool]:
        now = self._reactor.now
        try:
            for remembered in self._engine.bindings(since=self._bindings_told_at):
                if remembered is not None:
                    self._answer(Bound(number, self._open, remembered))
                yield False
            self._bindings_told_at = now
        except MemoryError:  # there may be some the next time
            self._context.memory.spend()
        self._answer(Bound(number, self._open))

    def _stop_accepting(self, number: int) -> Iterator[bool]:
        for _ in self._engine.retire():
            yield False
        yield True
        self._answer(Done(number, self._open))

    def _drain(self, number: int, grace_s: float) -> None:
        begun = self._reactor.clock()

        def look() -> None:
            left = sum(live.since <= begun for live in self._context.live)
            if left and self._reactor.clock() - begun < grace_s:
                self._reactor.after(LOOK_S, look)
            else:
                self._answer(Drained(number, self._open, left))

        look()

    # Sockets.

    def _open_socket(self, message: Listen) -> socket.socket:
        fd = self._arriving.popleft()
        if not self._context.budget.take(1):
            os.close(fd)
            raise OSError(None, "all descriptors are in use; raise the limit on open files")
        return socket.socket(fileno=fd)

    def _close_socket(self, sock: socket.socket) -> None:
        """Others may still have it: it is closed here only."""
        self._context.budget.give(1)
        self._reactor.close(sock.detach())

    # The end.

    def _listen_to_signals(self) -> None:
        # A signal to the whole process group is for the control process, which tells us what it means; SIGTERM, too, as
        # long as it lives: who ended by that would cut connections that are to be drained.
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.detach())
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._reactor.add(woken.fileno(), lambda what: self._on_signal(woken), LEVEL)

    def _on_signal(self, woken: socket.socket) -> None:
        woken.recv(64)
        if self._channel is None:
            self._leave()

    def _leave(self) -> None:
        """As an orphan: take who waits already and nobody more, let the connections finish, end."""
        if self._leaving:
            return
        self._leaving = True
        self._work.append(self._take_leave())
        self._set_to_work()

    def _take_leave(self) -> Iterator[bool]:
        for _ in self._engine.retire():
            yield False
        yield True
        until = self._reactor.clock() + self._context.tune.shutdown_grace_s

        def look() -> None:
            if self._context.live and self._reactor.clock() < until:
                self._reactor.after(LOOK_S, look)
            else:
                self._reactor.stop()

        look()


def main(arguments: Sequence[str]) -> int:
    """Live a worker's life; the exit status. The arguments are those that `process.command` gives."""
    fd, number, run, owner_prefix = arguments
    try:
        _settle_in(number)
        worker = Worker(socket.socket(fileno=int(fd)), number=int(number), run=run, owner_prefix=owner_prefix)
        gc.collect()
        gc.freeze()
        gc.set_threshold(1_000, 4, 10_000)  # the byte path leaves no cycles; and a short look is a short pause
        worker.live()
    except BaseException as error:
        _say(number, f"internal error: {_in_one_line(error)}")
        return EXIT_INTERNAL_ERROR
    return 0


def _settle_in(number: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # where there is no /proc nobody looks
        comm.write(f"kubeproxy-{number}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Never CAP_NET_ADMIN: with it a worker that an attacker controls could rewrite every rule of the node.
    privileges.drop(keep=privileges.FOR_DIALING)
    if (why_not := seccomp.confine()) is not None:
        _say(number, f"goes on without: {why_not}")


def _say(number: int | str, what: str) -> None:
    print(f"kubeproxy worker {number} (pid {os.getpid()}): {what}", file=sys.stderr, flush=True)  # noqa: T201 - its log


def _in_one_line(error: BaseException) -> str:
    """An exception and where it came from, innermost first."""
    places = [
        f"{frame.name} ({os.path.basename(frame.filename)}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return " < ".join([f"{type(error).__name__}: {error}".replace("\n", " "), *reversed(places)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
