"""Handles a worker's requests about its engine, each in small steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.dataplane.messages import Listen, Message, Tune
from kubeproxy.dataplane.workers.protocol import (
    Apply,
    BindingsReply,
    ClosePrevious,
    CountersReply,
    DoneReply,
    EjectedReply,
    EndedReply,
    OpenReply,
    OpenToReply,
    OpenToRequest,
    PreviewReply,
    PreviewRequest,
    Query,
    Reply,
    Request,
    StopAccepting,
    Topic,
    WorkerStatusReply,
)
from kubeproxy.model import Address, FrontendName, Target

COUNTERS_PER_FRAME = 128
"""The number of frontends with counters in one frame: about 10 kB, which take some tenths of a millisecond to encode
and send."""


class EngineRequests:
    """Carries out the requests of the control process that concern the engine alone."""

    def __init__(self, engine: Engine, context: Context, *, worker: int, answer: Callable[[Reply], None]) -> None:
        """`worker` is the number of this worker. `answer` sends a reply."""
        self._engine = engine
        self._context = context
        self._worker = worker
        self._answer = answer
        self._bindings_sent_at = context.reactor.now

    def begin(self, request: Request) -> Iterator[bool]:
        """Return the steps of a request. The request may be interrupted for a turn after each step. A step yields True
        if it must be interrupted, because the next step depends on the end of the turn."""
        match request:
            case Apply(number, messages):
                return self._apply(number, messages)
            case ClosePrevious(number, frontends):
                return self._close_previous(number, frontends)
            case Query(number, Topic.COUNTERS):
                return self._count(number)
            case Query(number, Topic.EJECTED):
                return self._report_ejected(number)
            case Query(number, Topic.OPEN):
                return self._report_open(number)
            case Query(number, Topic.BINDINGS):
                return self._report_bindings(number)
            case OpenToRequest(number, addresses):
                return self._count_open(number, addresses)
            case StopAccepting(number):
                return self._stop_accepting(number)
            case _:
                return self._reply(request)

    def _reply(self, request: Request) -> Iterator[bool]:
        """Carry out a request in one step, after earlier requests."""
        match request:
            case Query(number, Topic.WORKER_STATUS):
                self._answer(WorkerStatusReply(number, self._open, self._engine.worker_status(worker=self._worker)))
            case Query(number, Topic.ENDED):
                self._answer(EndedReply(number, self._open, tuple(self._engine.take_ended())))
            case PreviewRequest(number, frontend, client, port):
                preview = self._engine.preview(frontend, client, port, worker=self._worker)
                self._answer(PreviewReply(number, self._open, preview))
        yield from ()

    @property
    def _open(self) -> int:
        return len(self._context.live)

    def _apply(self, number: int, messages: Sequence[Message]) -> Iterator[bool]:
        failures: dict[FrontendName, str] = {}
        present: FrontendName | None = None
        for message in messages:
            frontend = None if isinstance(message, Tune) else message.frontend
            if frontend != present:
                # Pause only between frontends. A client must not reach a frontend that has got only some of its
                # messages.
                yield False
                present = frontend
            if isinstance(message, Listen) and self._engine.serves(message.frontend):
                if (failure := self._engine.listen_on_new(message)) is not None:
                    failures[message.frontend] = failure
            else:
                failures |= self._engine.handle((message,))
        yield True  # Wait for the end of the turn, when sockets are closed.
        self._answer(DoneReply(number, self._open, tuple(failures.items())))

    def _close_previous(self, number: int, frontends: Sequence[FrontendName]) -> Iterator[bool]:
        for frontend in frontends:
            self._engine.close_previous(frontend)
            yield False
        yield True
        self._answer(DoneReply(number, self._open))

    def _count(self, number: int) -> Iterator[bool]:
        changed: list[tuple[FrontendName, Counters]] = []
        for change in self._engine.changed_counters():
            if change is not None:
                changed.append(change)
                if len(changed) == COUNTERS_PER_FRAME:
                    self._answer(CountersReply(number, self._open, tuple(changed), more=True))
                    changed.clear()
            yield False
        self._answer(CountersReply(number, self._open, tuple(changed)))

    def _report_ejected(self, number: int) -> Iterator[bool]:
        found: list[tuple[FrontendName, tuple[EjectedEndpoint, ...]]] = []
        for ejected in self._engine.ejected(worker=self._worker):
            if ejected is not None:
                found.append(ejected)
            yield False
        self._answer(EjectedReply(number, self._open, tuple(found)))

    def _report_open(self, number: int) -> Iterator[bool]:
        found: list[tuple[FrontendName, tuple[tuple[Target, int], ...]]] = []
        for counts in self._engine.open_by_endpoint():
            if counts is not None:
                found.append((counts[0], tuple(counts[1].items())))
            yield False
        self._answer(OpenReply(number, self._open, tuple(found)))

    def _report_bindings(self, number: int) -> Iterator[bool]:
        now = self._context.reactor.now
        try:
            for bindings in self._engine.bindings(since=self._bindings_sent_at):
                if bindings is not None:
                    self._answer(BindingsReply(number, self._open, bindings))
                yield False
            self._bindings_sent_at = now
        except MemoryError:  # The next query will include these again.
            self._context.memory.spend()
        self._answer(BindingsReply(number, self._open))

    def _count_open(self, number: int, addresses: frozenset[Address]) -> Iterator[bool]:
        counts: dict[Address, int] = {}
        for _ in self._engine.open_to(addresses, counts):
            yield False
        self._answer(OpenToReply(number, self._open, tuple(counts.items())))

    def _stop_accepting(self, number: int) -> Iterator[bool]:
        for _ in self._engine.retire():
            yield False
        yield True
        self._answer(DoneReply(number, self._open))
