"""The data plane in processes of its own: this is the control process's side of it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import astuple, replace

from kubeproxy.dataplane.descriptors import DescriptorBudget
from kubeproxy.dataplane.held import HeldPorts
from kubeproxy.dataplane.interface import Counters, Ended, Ill, Prospect, Vitals
from kubeproxy.dataplane.messages import Listen, Message, Retire, SetEndpoints, Tune
from kubeproxy.dataplane.ports import HeldPort
from kubeproxy.dataplane.process import WorkerProcess, all_reaped, command
from kubeproxy.dataplane.served import Served
from kubeproxy.dataplane.wire import (
    About,
    Ailing,
    Answer,
    Apply,
    Ask,
    Doing,
    Done,
    Drain,
    Drained,
    End,
    Ends,
    Foresee,
    Foreseen,
    Request,
    Shed,
    StopAccepting,
)
from kubeproxy.errors import KernelError
from kubeproxy.model import Address, FrontendName, Protocol
from kubeproxy.tasks import TaskSet

CHUNK = 32
"""Frontends told of in one frame: their sockets are open in both processes for a moment."""
CHUNK_SOCKETS = 256
"""At most that many for all workers together."""
START_S = 10.0
"""How long `send` waits for the first worker to be in service."""
STEADY_S = 60.0
"""A worker that lived that long was well; and so long do deaths count for `trouble`."""
DEATHS = 3
"""So many within `STEADY_S` are trouble."""
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.1, 10.0
"""How long its place stays empty at the second death in a row, and at most. At the first it does not."""
SETTLE_S = 1.0
"""How long sockets that no new client gets are still listened on, for those who are about to connect."""
END_S = 3.0
"""How long workers may take to end when they are told to do so at once."""
_BREATH = 512
"""Frontends summed up between two breaths of the event loop."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A worker serves no more, and nobody had asked for that."""

    number: int
    pid: int | None
    """None: it could not even be started."""
    reason: str
    restarts_in_s: float


class WorkerDataPlane:
    """A `DataPlane` and the `PortReserver` that goes with it, in `count` processes."""

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[WorkerEnd], None],
        on_crash: Callable[[str, BaseException], None],
        transparent: bool = False,
        run: str = "",
        owner_name: str = "",
        inherit: Sequence[int] = (),
        budget: DescriptorBudget | None = None,
    ) -> None:
        """To be made inside a running event loop; the workers start at once.

        `on_crash` is told of errors that ought not to be (see `TaskSet`). `transparent`: workers keep the capability
        to dial from clients' addresses, if they have it. `owner_name`: the abstract Unix socket (without the leading
        NUL) at which they look for another owner when this process is gone, and say that they are of this `run`;
        empty: they do not. `inherit`: descriptors that stay open in every worker as long as it lives.
        """
        self._count = count
        self._on_end = on_end
        self._transparent = transparent
        self._run = run
        self._owner_name = owner_name
        self._inherit = tuple(inherit)
        self._budget = budget or DescriptorBudget.of_this_process()
        self._ports = HeldPorts(self._budget)
        self._tune = Tune()
        self._frontends: dict[FrontendName, Served] = {}
        self._past: dict[FrontendName, Counters] = {}
        """What workers had counted that are gone."""
        self._workers: dict[int, WorkerProcess] = {}
        self._leavers: set[WorkerProcess] = set()
        """Those that serve no new clients, but are not reaped yet."""
        self._serving = asyncio.Event()
        """Whether one is in service."""
        self._deaths: deque[tuple[float, WorkerEnd]] = deque(maxlen=DEATHS)
        self._restarts = 0
        self._over = asyncio.Event()
        """Set when nobody is to be started any more."""
        self._tasks = TaskSet(on_crash)
        for number in range(count):
            self._tasks.start(self._keep(number), name=f"worker {number}")

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
        await self._until_served()
        endpoints = {message.frontend: message for message in messages if isinstance(message, SetEndpoints)}
        failures: dict[FrontendName, str] = {}
        for chunk in _chunks(messages, max(1, min(CHUNK, CHUNK_SOCKETS // self._count))):
            failures |= await self._send(chunk, endpoints)
        return failures

    async def _send(
        self, messages: Sequence[Message], endpoints: Mapping[FrontendName, SetEndpoints]
    ) -> dict[FrontendName, str]:
        """All that is known changes before the first await; who is started meanwhile learns of it as of the past."""
        parcels = {number: _Parcel(worker) for number, worker in self._workers.items()}
        failures: dict[FrontendName, str] = {}
        begun: dict[FrontendName, Served] = {}
        moved: list[FrontendName] = []
        ended: list[Served] = []
        for message in messages:
            match message:
                case Tune():
                    _add(parcels, message)
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
                    new = Served(message, held, workers=self._count, budget=self._budget)
                    self._frontends[name] = begun[name] = new
                    try:
                        self._begin(new, endpoints.get(name), parcels)
                    except OSError as error:
                        failures[name] = _cannot_listen(message, error)
                        ended.append(begun.pop(name))
                        self._forget(name, parcels)
                case SetEndpoints(frontend=name) if (served := self._frontends.get(name)) is not None:
                    served.endpoints = message
                    if not served.kept and served.must_keep(message):
                        try:
                            self._move(served, parcels)
                            moved.append(name)
                        except OSError as error:
                            failures[name] = f"cannot keep clients with one worker: {error.strerror or error}"
                    _add(parcels, message, unless_untold=name)
                case Retire(frontend=name) if name in self._frontends:
                    ended.append(self._frontends[name])
                    self._forget(name, parcels)
                case _:
                    pass
        refused = await self._deliver(parcels, bearable=begun)
        for name in begun.keys() & refused.keys():
            failures[name] = refused[name]
            parcels = {number: _Parcel(worker) for number, worker in self._workers.items()}
            self._forget(name, parcels)
            ended.append(begun.pop(name))
            await self._deliver(parcels)
        for served in begun.values():
            served.confirmed = True
        for served in ended:
            served.close()
        if moved:
            self._tasks.start(self._settle(moved), name="settle")
        return failures

    def _begin(self, served: Served, endpoints: SetEndpoints | None, parcels: Mapping[int, _Parcel]) -> None:
        """Sockets for a new frontend. OSError when the kernel says no."""
        if served.must_keep(endpoints):
            served.keep()
        for parcel in parcels.values():
            parcel.add_listen(served)

    def _move(self, served: Served, parcels: Mapping[int, _Parcel]) -> None:
        """From plain sockets to kept ones. OSError when the kernel says no: then the plain ones stay."""
        name = served.listen.frontend
        told = [parcel for parcel in parcels.values() if name not in parcel.worker.untold]
        served.keep(beside=len(told))
        for parcel in told:
            parcel.add_listen(served)

    async def _settle(self, names: Sequence[FrontendName]) -> None:
        """The second half of `_move`: the plain sockets go, and with them their places among those that listen."""
        await asyncio.sleep(SETTLE_S)
        for name in names:
            if (served := self._frontends.get(name)) is not None:
                served.narrow()
        await self._ask(lambda number: Shed(number, tuple(names)))
        for name in names:
            if (served := self._frontends.get(name)) is not None:
                served.spread()

    def _forget(self, name: FrontendName, parcels: Mapping[int, _Parcel]) -> None:
        """A frontend is served no more."""
        self._frontends.pop(name, None)
        self._past.pop(name, None)
        for parcel in parcels.values():
            parcel.worker.counters.pop(name, None)
        _add(parcels, Retire(name), unless_untold=name)
        for parcel in parcels.values():
            parcel.worker.untold.pop(name, None)

    async def _deliver(
        self, parcels: Mapping[int, _Parcel], *, bearable: Collection[FrontendName] = ()
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
        for parcel in parcels.values():
            if parcel.messages:
                answer = parcel.send()
                if parcel.worker.in_service:
                    waiting.append((parcel.worker, answer))
                else:
                    answer.add_done_callback(partial(look_later, parcel.worker))
        for worker, answer in waiting:
            look(worker, await answer, bearable)
        return failures

    async def _until_served(self) -> None:
        if self._serving.is_set() or self._over.is_set():
            return
        try:
            async with asyncio.timeout(START_S):
                await self._serving.wait()
        except TimeoutError:
            last = f"; the last one: {self._deaths[-1][1].reason}" if self._deaths else ""
            raise KernelError(f"no worker process is in service within {START_S:g} s{last}") from None

    # What they know.

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        await self._ask(lambda number: Ask(number, About.COUNTERS))
        found = dict.fromkeys(self._frontends, _NOTHING)
        tables = self._tables()
        for count, name in enumerate(set().union(*tables) & found.keys(), 1):
            parts = [part for table in tables if (part := table.get(name)) is not None]
            found[name] = _sum(parts) if len(parts) > 1 else parts[0] if parts else _NOTHING
            if count % _BREATH == 0:
                await asyncio.sleep(0)
                tables = self._tables()  # one that has died meanwhile is among the past ones now
        return found

    def _tables(self) -> list[Mapping[FrontendName, Counters]]:
        return [self._past, *(worker.counters for worker in self._workers.values())]

    async def vitals(self) -> Sequence[Vitals]:
        """See `DataPlane.vitals`."""
        answers = await self._ask(lambda number: Ask(number, About.VITALS))
        return sorted((a.vitals for a in answers if isinstance(a, Doing)), key=lambda vitals: vitals.number)

    async def ill(self) -> Mapping[FrontendName, Sequence[Ill]]:
        """See `DataPlane.ill`."""
        found: dict[FrontendName, list[Ill]] = {}
        for answer in await self._ask(lambda number: Ask(number, About.ILL)):
            if isinstance(answer, Ailing):
                for name, ill in answer.ill:
                    found.setdefault(name, []).extend(ill)
        return found

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        answers = await self._ask(lambda number: Ask(number, About.ENDED))
        return [ended for answer in answers if isinstance(answer, Ends) for ended in answer.ended]

    async def prospects(self, frontend: FrontendName, client: Address) -> Sequence[Prospect]:
        """See `DataPlane.prospects`."""
        answers = await self._ask(lambda number: Foresee(number, frontend, client))
        found = (a.prospect for a in answers if isinstance(a, Foreseen) and a.prospect is not None)
        return sorted(found, key=lambda prospect: prospect.worker)

    async def _ask(self, make: Callable[[int], Request]) -> list[Answer | None]:
        """The same of everybody in service."""
        return await asyncio.gather(
            *(worker.request(make) for worker in list(self._workers.values()) if worker.in_service)
        )

    @property
    def restarts(self) -> int:
        """See `DataPlane.restarts`."""
        return self._restarts

    @property
    def trouble(self) -> str | None:
        """See `DataPlane.trouble`."""
        if len(self._deaths) < DEATHS or asyncio.get_running_loop().time() - self._deaths[0][0] > STEADY_S:
            return None
        last = self._deaths[-1][1]
        return f"workers keep dying: {DEATHS} within {STEADY_S:g} s, the last (number {last.number}): {last.reason}"

    @property
    def open_connections(self) -> int:
        """See `DataPlane.open_connections`; at most a second old."""
        return sum(worker.open for worker in (*self._workers.values(), *self._leavers))

    # Workers.

    async def _keep(self, number: int) -> None:
        """Keep a worker in one of the places."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not self._over.is_set():
            started_at = loop.time()
            worker: WorkerProcess | None = None
            try:
                worker = WorkerProcess(number, partial(self._command, number), inherit=self._inherit)
                reason = await self._tend(worker)
            except OSError as error:
                reason = f"it cannot be started: {error.strerror or error}"
            if self._over.is_set():
                return
            if loop.time() - started_at >= STEADY_S:
                pause_s = 0.0
            end = WorkerEnd(number, worker.pid if worker else None, reason, pause_s)
            self._deaths.append((loop.time(), end))
            self._on_end(end)
            await asyncio.sleep(pause_s)
            self._restarts += 1
            pause_s = min(max(PAUSE_FIRST_S, 2 * pause_s), PAUSE_LIMIT_S)

    def _command(self, number: int, fd: int) -> list[str]:
        return command(fd, number=number, transparent=self._transparent, run=self._run, owner_name=self._owner_name)

    async def _tend(self, worker: WorkerProcess) -> str:
        """A worker's life: tell it everything, and wait for its end; why it ended."""
        self._workers[worker.number] = worker
        try:
            if (failure := await self._bring_up(worker)) is not None:
                worker.kill(failure)
            return await asyncio.shield(worker.gone)
        finally:
            del self._workers[worker.number]
            self._leavers.add(worker)
            worker.reaped.add_done_callback(lambda _: self._leavers.discard(worker))
            if not any(other.in_service for other in self._workers.values()):
                self._serving.clear()
            for name, counters in worker.counters.items():
                if name in self._frontends:
                    kept = replace(counters, active=0, affinity_entries=0)
                    self._past[name] = _sum((self._past.get(name, Counters()), kept))

    async def _bring_up(self, worker: WorkerProcess) -> str | None:
        """Tell a new worker everything. What is sent meanwhile it hears, too, if it has heard of the frontend. What it
        could not do, or None."""
        worker.untold = dict.fromkeys(self._frontends)
        parcel = _Parcel(worker)
        parcel.messages.append(self._tune)
        while True:
            chunk = list(worker.untold)[:CHUNK]
            for name in chunk:
                del worker.untold[name]
                served = self._frontends[name]
                try:
                    parcel.add_listen(served)
                except OSError as error:
                    return _cannot_listen(served.listen, error)
                if served.endpoints is not None:
                    parcel.messages.append(served.endpoints)
            answer = await parcel.send()
            if answer is None:
                return None
            if isinstance(answer, Done) and answer.failures:
                return answer.failures[0][1]
            if not worker.untold:
                worker.in_service = True
                self._serving.set()
                return None
            parcel = _Parcel(worker)

    # The end.

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        self._over.set()
        for worker in self._workers.values():
            if not worker.in_service:
                worker.kill("it is not needed any more")
        await self._ask(StopAccepting)
        for served in self._frontends.values():
            served.close()
        self._frontends.clear()

    async def drain(self, grace_s: float) -> int:
        """See `DataPlane.drain`."""
        answers = await self._ask(lambda number: Drain(number, grace_s))
        return sum(answer.left for answer in answers if isinstance(answer, Drained))

    async def close(self) -> None:
        """See `DataPlane.close`. The processes have ended then."""
        self._over.set()
        everybody = [*self._workers.values(), *self._leavers]
        for worker in self._workers.values():
            worker.request(End)
        for worker in self._leavers:
            worker.kill("it is to end at once")
        await all_reaped(everybody, within_s=END_S)
        await self._tasks.close()
        for served in self._frontends.values():
            served.close()
        self._frontends.clear()
        self._ports.close()


class _Parcel:
    """Messages for one worker, and the sockets that go with them."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.messages: list[Message] = []
        self._sockets: list[tuple[Served, socket.socket]] = []

    def add_listen(self, served: Served) -> None:
        """A frontend, with the worker's socket. OSError when there is none to be had."""
        self._sockets.append((served, served.socket_for(self.worker.number)))
        self.messages.append(served.listen)

    def send(self) -> asyncio.Future[Answer | None]:
        """Off it goes."""
        messages = tuple(self.messages)
        answer = self.worker.request(lambda number: Apply(number, messages), [sock for _, sock in self._sockets])
        for served, sock in self._sockets:
            served.passed(sock)
        return answer


def _add(parcels: Mapping[int, _Parcel], message: Message, *, unless_untold: FrontendName | None = None) -> None:
    """For everybody, but those who have yet to be told of this frontend at all, and will be told what then is so."""
    for parcel in parcels.values():
        if unless_untold not in parcel.worker.untold:
            parcel.messages.append(message)


def _chunks(messages: Sequence[Message], listens: int) -> Iterator[Sequence[Message]]:
    """In order, so many Listens at a time, each with what follows it."""
    chunk: list[Message] = []
    count = 0
    for message in messages:
        if isinstance(message, Listen):
            count += 1
            if count > listens:
                yield chunk
                chunk, count = [], 1
        chunk.append(message)
    if chunk:
        yield chunk


_NOTHING = Counters()
"""Of a frontend that nobody has come to. Most are so on any one node, and cost nothing to tell."""


def _sum(parts: Iterable[Counters]) -> Counters:
    return Counters(*map(sum, zip(*map(astuple, parts), strict=True)))


def _cannot_listen(message: Listen, error: OSError) -> str:
    return f"cannot listen on {message.address} port {message.port}: {error.strerror or error}"
