"""The main program of a worker: an engine on a reactor, controlled through a channel.

`process` starts it as ``python -m kubeproxy.dataplane.workers.main``. The program imports little, so that it starts
fast and stays small, and drops its privileges before it serves clients.
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

from kubeproxy.dataplane.balancing.open_counts import SharedRows
from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.messages import Listen
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.engine_requests import EngineRequests
from kubeproxy.dataplane.workers.move_receiver import Adopter
from kubeproxy.dataplane.workers.move_sender import Mover
from kubeproxy.dataplane.workers.orphan import Marker, Orphan
from kubeproxy.dataplane.workers.protocol import (
    Adopt,
    Apply,
    DoneReply,
    Drain,
    DrainReply,
    Exit,
    GarbledError,
    Heartbeat,
    MoveReply,
    MoveTo,
    Reply,
    Request,
)
from kubeproxy.dataplane.workers.takeover_messages import Move, Moved
from kubeproxy.runtime import privileges, sandbox

EXIT_INTERNAL_ERROR = 70
"""EX_SOFTWARE of sysexits(3)."""
SLICE_S = 0.001
"""How many seconds of work on requests are done in one turn. Events of connections are handled in between."""
LOOK_S = 0.05
"""How often, in seconds, to check whether a drain is complete, and to retry a channel after a memory shortage."""
FIND_S = 5.0
"""How many seconds to look for the successor that the control process has announced."""
STATUS_S = 1.0
"""How often, in seconds, the worker reports its number of open connections without a request. The report also shows
that it is alive."""


class Worker:
    """A worker process, from its first request to its exit."""

    def __init__(
        self, sock: socket.socket, *, number: int, shared_rows: SharedRows, marker: Marker, owner_prefix: str
    ) -> None:
        """`sock` is the worker's end of the channel. For `marker` and `owner_prefix` see `orphan`."""
        self._number = number
        self._marker = marker
        self._owner_prefix = owner_prefix
        self._reactor = Reactor()
        self._context = Context(reactor=self._reactor, budget=DescriptorBudget.of_this_process(), send=send_backlogs)
        self._context.shared_rows = shared_rows
        self._engine = Engine(
            self._context, open_socket=self._open_socket, close_socket=self._close_socket, rng=random.Random()
        )
        self._channel: Channel[Request] | None = Channel(sock, Request)
        self._watched = LEVEL
        self._work: deque[Iterator[bool]] = deque()
        """The steps of the requests in progress, in order (see `EngineRequests.begin`)."""
        self._working = False
        self._arriving: deque[int] = deque()
        """The sockets for the messages in progress."""
        self._leaving = False
        self._orphan: Orphan | None = None
        """The connection to the owner of the node, if that is another instance."""
        self._mover: Mover | None = None
        self._move_number: int | None = None
        """The number of the `MoveTo` request that has no reply yet, or None."""
        self._relieved = False
        """Whether the owner has retired this worker, or there is no owner. Then only its own control process keeps it
        alive."""
        self._adopters: set[Adopter] = set()
        self._requests = EngineRequests(self._engine, self._context, worker=number, answer=self._answer)
        self._reactor.add(sock.fileno(), self._on_channel, LEVEL)
        self._reactor.after(STATUS_S, self._send_status)
        self._listen_to_signals()

    def live(self) -> None:
        """Serve until it is time to exit."""
        self._reactor.run()
        if self._mover is not None:
            self._mover.stop()
        self._engine.close()

    # Channel.

    def _on_channel(self, what: int) -> None:
        if self._channel is None:
            return
        try:
            if what & select.EPOLLOUT:
                self._channel.flush()
            if what & ~select.EPOLLOUT:
                for request, descriptors in self._channel.receive():
                    self._arriving.extend(descriptors)
                    self._work.append(self._handle(request, len(descriptors)))
        except MemoryError:
            self._context.memory.spend()
            self._working = True  # The channel is not read until the work is done.
            self._reactor.after(LOOK_S, self._read_again)
            self._watch()
            return
        except GarbledError as error:
            _log(self._number, f"invalid frame from control process: {error}")
            self._lose_channel()
        except (EOFError, OSError):
            self._lose_channel()
        self._schedule_work()

    def _read_again(self) -> None:
        """Read the channel again after a MemoryError."""
        self._working = False
        self._on_channel(select.EPOLLIN)
        self._schedule_work()

    def _schedule_work(self) -> None:
        if self._work and not self._working:
            self._working = True
            self._reactor.again(self._continue)
        self._watch()

    def _continue(self) -> None:
        """Work on requests for one time slice."""
        self._working = False
        clock = self._reactor.clock
        until = clock() + SLICE_S
        while self._work:
            turn_has_to_end = next(self._work[0], None)
            if turn_has_to_end is None:
                self._work.popleft()
            elif turn_has_to_end or clock() >= until:
                break
        self._schedule_work()

    def _watch(self) -> None:
        """Stop reading requests while some are in progress, because the sockets that come with further ones are not in
        the budget yet."""
        if self._channel is None:
            return
        events = (0 if self._working else LEVEL) | (select.EPOLLOUT if self._channel.congested else 0)
        if events != self._watched:
            self._watched = events
            self._reactor.watch(self._channel.sock.fileno(), events)

    def _answer(self, frame: Reply | Heartbeat) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(frame)
        except OSError:
            self._lose_channel()
        self._watch()

    def _send_status(self) -> None:
        self._reactor.after(STATUS_S, self._send_status)
        if self._channel is not None and not self._channel.congested:
            self._answer(Heartbeat(self._open))

    @property
    def _open(self) -> int:
        return len(self._context.live)

    @property
    def _under_way(self) -> int:
        """Return how many connections have been sent to another instance that has not accepted them yet, and may refuse
        them."""
        return 0 if self._mover is None else self._mover.under_way

    def _lose_channel(self) -> None:
        """Become an orphan. The control process has closed the channel."""
        if self._channel is None:
            return
        self._reactor.remove(self._channel.sock.fileno())
        self._channel.close()
        self._channel = None
        if not self._engine.frontends and not self._work:
            self._reactor.stop()
            return
        if self._relieved:
            self._leave()
        elif self._orphan is None:
            self._look_for_owner(self._owner_prefix, self._context.tune.orphan_grace_s)

    def _look_for_owner(self, prefix: str, grace_s: float) -> None:
        self._orphan = Orphan(
            self._reactor,
            owner_prefix=prefix,
            marker=self._marker,
            grace_s=grace_s,
            bindings=self._engine.bindings,
            move=self._move_to,
            retire=self._relieve,
        )

    def _relieve(self) -> None:
        """Leave, unless a control process still wants this worker to drain."""
        self._relieved = True
        if self._channel is None:
            self._leave()
        elif self._mover is None:
            self._report_moved(0, self._open)

    def _move_to(self, request: Move, descriptors: Sequence[int]) -> None:
        """Move connections to the owner's workers. `descriptors` are sockets to these workers, one for each."""
        if len(descriptors) != len(request.workers):
            for descriptor in descriptors:
                os.close(descriptor)
            return
        if self._mover is None:
            self._mover = Mover(self._reactor, self._engine, self._report_moved)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        self._mover.add(list(zip(request.workers, sockets, strict=True)), request.count)

    def _report_moved(self, moved: int, left: int, longest_s: float = 0.0) -> None:
        if self._move_number is not None:
            self._answer(MoveReply(self._move_number, self._open, moved, left))
            self._move_number = None
        if self._orphan is not None and self._mover is not None:
            self._orphan.moved(Moved(moved, left, longest_s))

    # Requests.

    def _handle(self, request: Request, descriptors: int) -> Iterator[bool]:
        match request:
            case Apply(messages=messages) if (listens := sum(isinstance(it, Listen) for it in messages)) != descriptors:
                raise GarbledError(f"{listens} frontends to listen for, {descriptors} sockets")
            case Drain(number, grace_s):
                self._drain(number, grace_s)
            case MoveTo(number, successor):
                self._move_number = number
                self._look_for_owner(successor, FIND_S)
            case Adopt(number):
                return self._adopt(number)
            case Exit():
                return self._exit()
            case _:
                return self._requests.begin(request)
        return iter(())

    def _exit(self) -> Iterator[bool]:
        """Exit after the requests that came before."""
        self._reactor.stop()
        yield from ()

    def _drain(self, number: int, grace_s: float) -> None:
        begun = self._reactor.clock()

        def look() -> None:
            left = sum(live.since <= begun for live in self._context.live) + self._under_way
            if left and self._reactor.clock() - begun < grace_s:
                self._reactor.after(LOOK_S, look)
            else:
                self._answer(DrainReply(number, self._open, left))

        look()

    def _adopt(self, number: int) -> Iterator[bool]:
        if not self._arriving:
            raise GarbledError("no channel to take connections over from")
        adopter = Adopter(
            self._reactor,
            self._engine,
            socket.socket(fileno=self._arriving.popleft()),
            on_end=lambda: self._adopters.discard(adopter),
        )
        self._adopters.add(adopter)
        self._answer(DoneReply(number, self._open))
        yield from ()

    # Sockets.

    def _open_socket(self, message: Listen) -> socket.socket:
        fd = self._arriving.popleft()
        if not self._context.budget.take(1):
            os.close(fd)
            raise OSError(None, "all descriptors are in use; raise the limit on open files")
        return socket.socket(fileno=fd)

    def _close_socket(self, sock: socket.socket) -> None:
        """Close the socket in this process. Other processes may still use it."""
        self._context.budget.give(1)
        self._reactor.close(sock.detach())

    # Shutdown.

    def _listen_to_signals(self) -> None:
        # A signal to the whole process group is meant for the control process, which then sends requests. The same
        # holds for SIGTERM while that process lives: a worker that exited at once would cut connections that are to be
        # drained.
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
        """Accept the clients that are already queued, wait until open connections have ended, and exit. Only an orphan
        does this."""
        if self._leaving:
            return
        self._leaving = True
        self._work.append(self._shut_down())
        self._schedule_work()

    def _shut_down(self) -> Iterator[bool]:
        for _ in self._engine.retire():
            yield False
        yield True
        until = self._reactor.clock() + self._context.tune.shutdown_grace_s

        def look() -> None:
            if (self._context.live or self._under_way) and self._reactor.clock() < until:
                self._reactor.after(LOOK_S, look)
            else:
                self._reactor.stop()

        look()


def main(arguments: Sequence[str]) -> int:
    """Run a worker, and return its exit status. `arguments` are those made by `process.command`."""
    fd, number, counts_fd, marker, owner_prefix = arguments
    try:
        shared_rows = SharedRows(int(counts_fd), row=int(number))
        os.close(int(counts_fd))
        _settle_in(number)
        worker = Worker(
            socket.socket(fileno=int(fd)),
            number=int(number),
            shared_rows=shared_rows,
            marker=Marker(socket.socket(fileno=int(marker)) if marker else None),
            owner_prefix=owner_prefix,
        )
        gc.collect()
        gc.freeze()
        # The byte path creates no reference cycles, and frequent small collections are short pauses.
        gc.set_threshold(1_000, 4, 10_000)
        if (why_not := sandbox.confine(sockets=True)) is not None:
            _log(number, f"system calls are not filtered: {why_not}")
        worker.live()
    except BaseException as error:
        _log(number, f"internal error: {_in_one_line(error)}")
        return EXIT_INTERNAL_ERROR
    return 0


def _settle_in(number: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:  # The name is only for ps and top.
        comm.write(f"kubeproxy-{number}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sandbox.leave_file_system()
    # CAP_NET_ADMIN is never kept. With it, a worker under an attacker's control could rewrite all rules of the node.
    privileges.drop(keep=privileges.FOR_DIALING)


def _log(number: int | str, text: str) -> None:
    print(f"kubeproxy worker {number} (pid {os.getpid()}): {text}", file=sys.stderr, flush=True)  # noqa: T201 - its log


def _in_one_line(error: BaseException) -> str:
    """Return an exception with its locations, innermost first, as one line."""
    # Source lines are not included, because the sandbox does not allow reading files.
    places = [
        f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return " < ".join([f"{type(error).__name__}: {error}".replace("\n", " "), *reversed(places)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
