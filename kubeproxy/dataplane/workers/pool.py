"""The data plane in processes of its own: this is the control process's side of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

from msgspec.structs import astuple, replace

from kubeproxy.dataplane.interface import NOTHING, BalancePreview, Counters, EjectedEndpoint, Ended, WorkerStatus
from kubeproxy.dataplane.messages import Listen, Message, RestoreBindings, Retire, SetEndpoints, Tune
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget
from kubeproxy.dataplane.sockets.held_ports import HeldPorts
from kubeproxy.dataplane.sockets.reserved_ports import HeldPort
from kubeproxy.dataplane.workers.batch import CHUNK, CHUNK_MESSAGES, WorkerBatch, chunks, for_all
from kubeproxy.dataplane.workers.process import WorkerProcess, command
from kubeproxy.dataplane.workers.protocol import (
    About,
    Answer,
    Ask,
    ClosePrevious,
    Done,
    Drain,
    Drained,
    EjectedReply,
    Ends,
    PreviewReply,
    PreviewRequest,
    StopAccepting,
    WorkerStatusReply,
)
from kubeproxy.dataplane.workers.sockets import FrontendSockets
from kubeproxy.dataplane.workers.supervisor import Supervisor, WorkerEnd
from kubeproxy.model import Address, FrontendName, Protocol
from kubeproxy.runtime.tasks import TaskSet

SETTLE_S = 1.0
"""How long sockets that no new client gets are still listened on, for those who are about to connect."""
LEARN_S = 2.0
"""How often workers are asked whom affinity has bound: what one has done since is lost when it is killed."""
_BREATH = 512
"""Frontends summed up between two breaths of the event loop."""


class WorkerDataPlane:
    """A `DataPlane` and the `PortReserver` that goes with it, in `count` processes."""

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[WorkerEnd], None],
        on_crash: Callable[[str, BaseException], None],
        run: str = "",
        owner_prefix: str = "",
        inherit: Sequence[int] = (),
        budget: DescriptorBudget | None = None,
    ) -> None:
        """To be made inside a running event loop; the workers start at once.

        `on_crash` is told of errors that ought not to be (see `TaskSet`). `owner_prefix`: how the names of the abstract
        Unix sockets begin (without the leading NUL) at which they look for another owner when this process is gone, and
        say that they are of this `run`; empty: they do not. `inherit`: descriptors that stay open in every worker as
        long as it lives.
        """
        self._count = count
        self._budget = budget or DescriptorBudget.of_this_process()
        self._ports = HeldPorts(self._budget)
        self._tune = Tune()
        self._frontends: dict[FrontendName, FrontendSockets] = {}
        self._past: dict[FrontendName, Counters] = {}
        """What workers had counted that are gone."""
        self._tasks = TaskSet(on_crash)
        self._supervisor = Supervisor(
            count,
            command=lambda number, fd: command(fd, number=number, run=run, owner_prefix=owner_prefix),
            inherit=inherit,
            bring_up=self._bring_up,
            on_gone=self._remember,
            on_end=on_end,
            on_crash=on_crash,
        )
        self._workers = self._supervisor.workers
        self._clock = asyncio.get_running_loop().time
        self._tasks.start(self._keep_learning(), name="affinity")

    # Ports.

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> HeldPort:
        """See `PortReserver.reserve`."""
        return self._ports.reserve(protocol, address, port, claim=claim)

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._ports.share(on)

    # Messages.

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """See `DataPlane.send`. KernelError when no worker can be had."""
        # Of this, whoever is started hears even if nobody hears it now.
        self._tune = next((message for message in reversed(messages) if isinstance(message, Tune)), self._tune)
        await self._supervisor.until_served()
        endpoints = {message.frontend: message for message in messages if isinstance(message, SetEndpoints)}
        failures: dict[FrontendName, str] = {}
        for chunk in chunks(messages, workers=self._count):
            failures |= await self._send(chunk, endpoints)
        return failures

    async def _send(
        self, messages: Sequence[Message], endpoints: Mapping[FrontendName, SetEndpoints]
    ) -> dict[FrontendName, str]:
        """All that is known changes before the first await; who is started meanwhile learns of it as of the past."""
        parcels = {number: WorkerBatch(worker) for number, worker in self._workers.items()}
        failures: dict[FrontendName, str] = {}
        begun: dict[FrontendName, FrontendSockets] = {}
        moved: list[FrontendName] = []
        ended: list[FrontendSockets] = []
        for message in messages:
            match message:
                case Tune():
                    for_all(parcels, message)
                case Listen(frontend=name):
                    known = self._frontends.get(name)
                    if known is not None and known.confirmed and known.listen == message:
                        continue
                    if known is not None:
                        self._forget(name, parcels)
                        known.close()
                    try:
                        held = self._ports.of(message)
                    except OSError as error:
                        failures[name] = _cannot_listen(message, error)
                        continue
                    new = FrontendSockets(message, held, workers=self._count, budget=self._budget)
                    self._frontends[name] = begun[name] = new
                    try:
                        self._begin(new, endpoints.get(name), parcels)
                    except OSError as error:
                        failures[name] = _cannot_listen(message, error)
                        ended.append(begun.pop(name))
                        self._forget(name, parcels)
                case SetEndpoints(frontend=name) if (sockets := self._frontends.get(name)) is not None:
                    sockets.told(message)
                    if not sockets.kept and sockets.must_keep(message):
                        try:
                            self._move(sockets, parcels)
                            moved.append(name)
                        except OSError as error:
                            failures[name] = f"cannot keep clients with one worker: {error.strerror or error}"
                    for_all(parcels, message, unless_untold=name)
                case RestoreBindings(frontend=name) if (sockets := self._frontends.get(name)) is not None:
                    for number, share in sockets.restore_bindings(message.bindings, self._clock()).items():
                        if number in parcels and name not in parcels[number].worker.untold:
                            parcels[number].messages.append(share)
                case Retire(frontend=name) if name in self._frontends:
                    ended.append(self._frontends[name])
                    self._forget(name, parcels)
                case _:
                    pass
        refused = await self._deliver(parcels, bearable=begun)
        for name in begun.keys() & refused.keys():
            failures[name] = refused[name]
            parcels = {number: WorkerBatch(worker) for number, worker in self._workers.items()}
            self._forget(name, parcels)
            ended.append(begun.pop(name))
            await self._deliver(parcels)
        for sockets in begun.values():
            sockets.confirmed = True
        for sockets in ended:
            sockets.close()
        if moved:
            self._tasks.start(self._settle(moved), name="settle")
        return failures

    def _begin(
        self, sockets: FrontendSockets, endpoints: SetEndpoints | None, parcels: Mapping[int, WorkerBatch]
    ) -> None:
        """Sockets for a new frontend. OSError when the kernel says no."""
        if sockets.must_keep(endpoints):
            sockets.keep()
        for batch in parcels.values():
            batch.add_listen(sockets)

    def _move(self, sockets: FrontendSockets, parcels: Mapping[int, WorkerBatch]) -> None:
        """From plain sockets to kept ones. OSError when the kernel says no: then the plain ones stay."""
        name = sockets.listen.frontend
        told = [batch for batch in parcels.values() if name not in batch.worker.untold]
        sockets.keep(beside=len(told))
        for batch in told:
            batch.add_listen(sockets)

    async def _settle(self, names: Sequence[FrontendName]) -> None:
        """The second half of `_move`: the plain sockets go, and with them their places among those that listen."""
        await asyncio.sleep(SETTLE_S)
        for name in names:
            if (sockets := self._frontends.get(name)) is not None:
                sockets.narrow()
        await self._supervisor.ask(lambda number: ClosePrevious(number, tuple(names)))
        for name in names:
            if (sockets := self._frontends.get(name)) is not None:
                sockets.spread()

    def _forget(self, name: FrontendName, parcels: Mapping[int, WorkerBatch]) -> None:
        """A frontend is served no more."""
        self._frontends.pop(name, None)
        self._past.pop(name, None)
        for batch in parcels.values():
            batch.worker.forget(name)
        for_all(parcels, Retire(name), unless_untold=name)
        for batch in parcels.values():
            batch.worker.untold.pop(name, None)

    async def _deliver(
        self, parcels: Mapping[int, WorkerBatch], *, bearable: Collection[FrontendName] = ()
    ) -> dict[FrontendName, str]:
        """Send what has been packed; which of the bearable could not be done by those in service. A worker that cannot
        do something else is replaced."""

        def look(worker: WorkerProcess, answer: Answer | None, bearable: Collection[FrontendName]) -> None:
            for name, failure in answer.failures if isinstance(answer, Done) else ():
                if name in bearable:
                    failures[name] = failure
                else:
                    worker.kill(failure)

        def look_later(worker: WorkerProcess, answer: asyncio.Future[Answer | None]) -> None:
            look(worker, answer.result(), ())

        failures: dict[FrontendName, str] = {}
        waiting: list[tuple[WorkerProcess, asyncio.Future[Answer | None]]] = []
        for batch in parcels.values():
            if batch.messages:
                answer = batch.send()
                if batch.worker.in_service:
                    waiting.append((batch.worker, answer))
                else:
                    answer.add_done_callback(partial(look_later, batch.worker))
        for worker, answer in waiting:
            look(worker, await answer, bearable)
        return failures

    # What they know.

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        await self._supervisor.ask(lambda number: Ask(number, About.COUNTERS))
        found = dict.fromkeys(self._frontends, NOTHING)
        tables = self._tables()
        for count, name in enumerate(set().union(*tables) & found.keys(), 1):
            parts = [part for table in tables if (part := table.get(name)) is not None]
            found[name] = _sum(parts) if len(parts) > 1 else parts[0] if parts else NOTHING
            if count % _BREATH == 0:
                await asyncio.sleep(0)
                tables = self._tables()  # one that has died meanwhile is among the past ones now
        return found

    def _tables(self) -> list[Mapping[FrontendName, Counters]]:
        return [self._past, *(worker.counters for worker in self._workers.values())]

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """See `DataPlane.worker_status`."""
        answers = await self._supervisor.ask(lambda number: Ask(number, About.WORKER_STATUS))
        return sorted(
            (a.worker_status for a in answers if isinstance(a, WorkerStatusReply)),
            key=lambda worker_status: worker_status.number,
        )

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """See `DataPlane.ill`."""
        found: dict[FrontendName, list[EjectedEndpoint]] = {}
        for answer in await self._supervisor.ask(lambda number: Ask(number, About.EJECTED)):
            if isinstance(answer, EjectedReply):
                for name, ejected in answer.ejected:
                    found.setdefault(name, []).extend(ejected)
        return found

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        answers = await self._supervisor.ask(lambda number: Ask(number, About.ENDED))
        return [ended for answer in answers if isinstance(answer, Ends) for ended in answer.ended]

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `DataPlane.bindings`."""
        await self._ask_for_bindings()
        everything = product(self._frontends.values(), range(self._count))
        return [piece for sockets, number in everything for piece in sockets.remembered(number, self._clock())]

    async def _ask_for_bindings(self) -> None:
        await self._supervisor.ask(lambda number: Ask(number, About.BINDINGS))
        for worker in self._workers.values():
            self._learn(worker)

    def _learn(self, worker: WorkerProcess) -> None:
        """Take note of the clients that it has told of."""
        for told in worker.bound:
            if (sockets := self._frontends.get(told.frontend)) is not None:
                sockets.learn(worker.number, told.bindings, self._clock())
        worker.bound.clear()

    async def _keep_learning(self) -> None:
        """One that dies cannot be asked any more."""
        while True:
            await asyncio.sleep(LEARN_S)
            with contextlib.suppress(MemoryError):  # there may be some the next time
                await self._ask_for_bindings()

    async def previews(self, frontend: FrontendName, client: Address) -> Sequence[BalancePreview]:
        """See `DataPlane.prospects`."""
        answers = await self._supervisor.ask(lambda number: PreviewRequest(number, frontend, client))
        found = (a.preview for a in answers if isinstance(a, PreviewReply) and a.preview is not None)
        return sorted(found, key=lambda preview: preview.worker)

    @property
    def restarts(self) -> int:
        """See `DataPlane.restarts`."""
        return self._supervisor.restarts

    @property
    def problem(self) -> str | None:
        """See `DataPlane.trouble`."""
        return self._supervisor.problem

    @property
    def open_connections(self) -> int:
        """See `DataPlane.open_connections`; at most a second old."""
        return self._supervisor.open_connections

    # Workers.

    async def _bring_up(self, worker: WorkerProcess) -> str | None:
        """Tell a new worker everything. What is sent meanwhile it hears, too, if it has heard of the frontend. What it
        could not do, or None."""
        worker.untold = dict.fromkeys(self._frontends)
        batch = WorkerBatch(worker)
        batch.messages.append(self._tune)
        while True:
            chunk = list(worker.untold)[:CHUNK]
            for name in chunk:
                if len(batch.messages) > CHUNK_MESSAGES:
                    break
                del worker.untold[name]
                sockets = self._frontends[name]
                try:
                    batch.add_listen(sockets)
                except OSError as error:
                    return _cannot_listen(sockets.listen, error)
                if sockets.endpoints is not None:
                    batch.messages.append(sockets.endpoints)
                batch.messages.extend(sockets.remembered(worker.number, self._clock()))
            answer = await batch.send()
            if answer is None:
                return None
            if isinstance(answer, Done) and answer.failures:
                return answer.failures[0][1]
            if not worker.untold:
                worker.in_service = True
                return None
            batch = WorkerBatch(worker)

    def _remember(self, worker: WorkerProcess) -> None:
        """What a worker had counted, and knew of clients, when it is gone."""
        self._learn(worker)
        for name, counters in worker.counters.items():
            if name in self._frontends:
                kept = replace(counters, active=0, affinity_entries=0)
                self._past[name] = _sum((self._past.get(name, Counters()), kept))

    # The end.

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        self._supervisor.start_no_more()
        await self._supervisor.ask(StopAccepting)
        for sockets in self._frontends.values():
            sockets.close()
        self._frontends.clear()

    async def drain(self, grace_s: float) -> int:
        """See `DataPlane.drain`."""
        answers = await self._supervisor.ask(lambda number: Drain(number, grace_s))
        return sum(answer.left for answer in answers if isinstance(answer, Drained))

    async def close(self) -> None:
        """See `DataPlane.close`. The processes have ended then."""
        await self._supervisor.close()
        await self._tasks.close()
        for sockets in self._frontends.values():
            sockets.close()
        self._frontends.clear()
        self._ports.close()


def _sum(parts: Iterable[Counters]) -> Counters:
    return Counters(*map(sum, zip(*map(astuple, parts), strict=True)))


def _cannot_listen(message: Listen, error: OSError) -> str:
    return f"cannot listen on {message.address} port {message.port}: {error.strerror or error}"
