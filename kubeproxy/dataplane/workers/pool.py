"""The data plane in worker processes, as seen by the control process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.interface import (
    Entrances,
)
from kubeproxy.dataplane.messages import (
    NOT_OPEN,
    Join,
    Listen,
    MarkEndpoint,
    Message,
    RestoreBindings,
    Retire,
    SetEndpoints,
    Tune,
)
from kubeproxy.dataplane.sockets.port_reservation import ReservedPort, ReservedPorts
from kubeproxy.dataplane.workers.batch import CHUNK, CHUNK_MESSAGES, WorkerBatch, add_to_all, chunks
from kubeproxy.dataplane.workers.columns import Columns
from kubeproxy.dataplane.workers.frontend_sockets import FrontendSockets, ServedFrontend
from kubeproxy.dataplane.workers.process import WorkerProcess, command
from kubeproxy.dataplane.workers.protocol import (
    Adopt,
    ClosePrevious,
    DoneReply,
    Drain,
    DrainReply,
    MoveReply,
    MoveTo,
    Query,
    Reply,
    StopAccepting,
    Topic,
)
from kubeproxy.dataplane.workers.readings import WorkerReadings
from kubeproxy.dataplane.workers.supervisor import Supervisor, WorkerEnd
from kubeproxy.model import Address, FrontendName, Protocol
from kubeproxy.runtime.tasks import TaskSet

SETTLE_S = 1.0
"""For how many seconds replaced sockets stay open, so that handshakes in progress can complete."""
BINDINGS_S = 2.0
"""How often, in seconds, workers report affinity bindings. If a worker is killed, its bindings since the last report
are lost."""


class WorkerDataPlane(WorkerReadings):
    """The data plane in `count` worker processes, as a `DataPlane` and as its `PortReserver`."""

    def __init__(
        self,
        count: int,
        *,
        on_end: Callable[[WorkerEnd], None],
        on_crash: Callable[[str, BaseException], None],
        marker: int | None = None,
        owner_prefix: str = "",
        budget: DescriptorBudget | None = None,
    ) -> None:
        """Start the workers. Call this in a running event loop.

        `on_end` is called when a worker has ended unexpectedly, and `on_crash` for internal errors (see `TaskSet`).
        `owner_prefix` is the prefix, without the leading NUL, of the abstract Unix sockets at which an orphaned worker
        looks for a new owner. If it is empty the worker does not look. `marker` is the descriptor of the marker of this
        run, which every worker inherits to identify itself there.
        """
        self._count = count
        self._budget = budget or DescriptorBudget.of_this_process()
        self._ports = ReservedPorts(self._budget)
        self._tune = Tune()
        self._tasks = TaskSet(on_crash)
        self._columns = Columns(count)
        supervisor = Supervisor(
            count,
            command=lambda number, fd: command(
                fd, number=number, counts_fd=self._columns.fd, marker=marker, owner_prefix=owner_prefix
            ),
            inherit=(self._columns.fd,) if marker is None else (self._columns.fd, marker),
            initialize=self._initialize,
            on_stopped=self._on_stopped,
            on_end=on_end,
            on_crash=on_crash,
        )
        super().__init__(supervisor)
        self._clock = asyncio.get_running_loop().time
        self._tasks.start(self._collect_bindings(), name="affinity")

    # Ports.

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> ReservedPort:
        """See `PortReserver.reserve`."""
        return self._ports.reserve(protocol, address, port, claim=claim)

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._ports.share(on)

    # Messages.

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """See `DataPlane.send`. Raise KernelError if no worker is in service."""
        # Store the settings before waiting, so that a worker that starts meanwhile gets them, even if no worker is in
        # service now.
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
        """Send one chunk. The whole state is changed before the first await, so that a worker that starts meanwhile
        gets the new state."""
        batches = {number: WorkerBatch(worker) for number, worker in self._workers.items()}
        failures: dict[FrontendName, str] = {}
        begun: dict[FrontendName, ServedFrontend[Any]] = {}
        moved: list[FrontendName] = []
        ended: list[ServedFrontend[Any]] = []
        for message in messages:
            match message:
                case Tune():
                    add_to_all(batches, message)
                case Listen(frontend=name):
                    known = self._frontends.get(name)
                    if known is not None and known.confirmed and known.begin == message:
                        continue
                    if known is not None:
                        self._forget(name, batches)
                        known.close()
                    try:
                        reserved = self._ports.of(message)
                    except OSError as error:
                        failures[name] = _cannot_listen(message, error)
                        continue
                    new = FrontendSockets(message, reserved, workers=self._count, budget=self._budget)
                    self._frontends[name] = begun[name] = new
                    try:
                        self._begin(new, endpoints.get(name), batches)
                    except OSError as error:
                        failures[name] = _cannot_listen(message, error)
                        ended.append(begun.pop(name))
                        self._forget(name, batches)
                case Join(frontend=name):
                    known = self._frontends.get(name)
                    if message.listener not in self._frontends:
                        failures[name] = failures.get(message.listener, NOT_OPEN)
                        if known is not None:
                            self._forget(name, batches)
                            ended.append(known)
                        continue
                    if known is not None and known.confirmed and isinstance(known.begin, Join):
                        known.begin = message
                        add_to_all(batches, message, unless_unsent=name)
                        continue
                    if known is not None:
                        self._forget(name, batches)
                        known.close()
                    joined = self._frontends[name] = begun[name] = ServedFrontend(message, workers=self._count)
                    for batch in batches.values():
                        batch.add_first(joined)
                case SetEndpoints(frontend=name) if (sockets := self._frontends.get(name)) is not None:
                    message = self._columns.assigned(message)
                    sockets.set_endpoints(message)
                    if isinstance(sockets, FrontendSockets) and not sockets.pinned and sockets.must_pin(message):
                        try:
                            self._pin(sockets, batches)
                            moved.append(name)
                        except OSError as error:
                            failures[name] = f"cannot keep clients with one worker: {error.strerror or error}"
                    add_to_all(batches, message, unless_unsent=name)
                case MarkEndpoint(frontend=name) if name in self._frontends:
                    add_to_all(batches, message, unless_unsent=name)
                case RestoreBindings(frontend=name) if (sockets := self._frontends.get(name)) is not None:
                    for number, share in sockets.restore_bindings(message.bindings, self._clock()).items():
                        if number in batches and name not in batches[number].worker.unsent:
                            batches[number].messages.append(share)
                case Retire(frontend=name) if name in self._frontends:
                    ended.append(self._frontends[name])
                    self._forget(name, batches)
                case _:
                    pass
        refused = await self._deliver(batches, may_fail=begun)
        for name, served in begun.items():
            if isinstance(served.begin, Join) and served.begin.listener in refused:
                refused[name] = refused[served.begin.listener]
        for name in begun.keys() & refused.keys():
            failures[name] = refused[name]
            batches = {number: WorkerBatch(worker) for number, worker in self._workers.items()}
            self._forget(name, batches)
            ended.append(begun.pop(name))
            await self._deliver(batches)
        for sockets in begun.values():
            sockets.confirmed = True
        for sockets in ended:
            sockets.close()
        if moved:
            self._tasks.start(self._settle(moved), name="settle")
        return failures

    def _begin(
        self, sockets: FrontendSockets, endpoints: SetEndpoints | None, batches: Mapping[int, WorkerBatch]
    ) -> None:
        """Open the sockets of a new frontend. Raise OSError if the kernel refuses."""
        if sockets.must_pin(endpoints):
            sockets.pin()
        for batch in batches.values():
            batch.add_first(sockets)

    def _pin(self, sockets: FrontendSockets, batches: Mapping[int, WorkerBatch]) -> None:
        """Open pinned sockets beside the unpinned ones. Raise OSError if the kernel refuses; the unpinned sockets then
        stay in use."""
        name = sockets.begin.frontend
        serving = [batch for batch in batches.values() if name not in batch.worker.unsent]
        sockets.pin(preceding=len(serving))
        for batch in serving:
            batch.add_first(sockets)

    async def _settle(self, names: Sequence[FrontendName]) -> None:
        """Close the unpinned sockets after `_pin`. This changes the order of their group, so meanwhile all clients go
        to one socket."""
        await asyncio.sleep(SETTLE_S)
        for name in names:
            if isinstance(sockets := self._frontends.get(name), FrontendSockets):
                sockets.assign_to_first()
        await self._supervisor.request_all(lambda number: ClosePrevious(number, tuple(names)))
        for name in names:
            if isinstance(sockets := self._frontends.get(name), FrontendSockets):
                sockets.assign_by_address()

    def _forget(self, name: FrontendName, batches: Mapping[int, WorkerBatch]) -> None:
        """Remove a frontend, here and from the workers."""
        self._frontends.pop(name, None)
        self._past.pop(name, None)
        self._columns.release(name)
        for batch in batches.values():
            batch.worker.forget(name)
        add_to_all(batches, Retire(name), unless_unsent=name)
        for batch in batches.values():
            batch.worker.unsent.pop(name, None)

    async def _deliver(
        self, batches: Mapping[int, WorkerBatch], *, may_fail: Collection[FrontendName] = ()
    ) -> dict[FrontendName, str]:
        """Send the batches. Return the failures that workers in service report for the frontends in `may_fail`. A
        worker that reports any other failure is replaced."""

        def check(worker: WorkerProcess, reply: Reply | None, may_fail: Collection[FrontendName]) -> None:
            for name, failure in reply.failures if isinstance(reply, DoneReply) else ():
                if name in may_fail:
                    failures[name] = failure
                else:
                    worker.kill(failure)

        def check_later(worker: WorkerProcess, reply: asyncio.Future[Reply | None]) -> None:
            check(worker, reply.result(), ())

        failures: dict[FrontendName, str] = {}
        waiting: list[tuple[WorkerProcess, asyncio.Future[Reply | None]]] = []
        for batch in batches.values():
            if batch.messages:
                reply = batch.send()
                if batch.worker.in_service:
                    waiting.append((batch.worker, reply))
                else:
                    reply.add_done_callback(partial(check_later, batch.worker))
        for worker, reply in waiting:
            check(worker, await reply, may_fail)
        return failures

    # Affinity.

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `DataPlane.bindings`."""
        await self._query_bindings()
        all_pairs = product(self._frontends.values(), range(self._count))
        return [piece for sockets, number in all_pairs for piece in sockets.bindings_of(number, self._clock())]

    async def _query_bindings(self) -> None:
        await self._supervisor.request_all(lambda number: Query(number, Topic.BINDINGS))
        for worker in self._workers.values():
            self._learn(worker)

    def _learn(self, worker: WorkerProcess) -> None:
        """Record the affinity bindings that a worker has reported."""
        for message in worker.bindings:
            if (sockets := self._frontends.get(message.frontend)) is not None:
                sockets.learn(worker.number, message.bindings, self._clock())
        worker.bindings.clear()

    async def _collect_bindings(self) -> None:
        """Ask the workers for their bindings regularly, because a dead worker cannot be asked."""
        while True:
            await asyncio.sleep(BINDINGS_S)
            with contextlib.suppress(MemoryError):  # The next query may succeed.
                await self._query_bindings()

    # Workers.

    async def _initialize(self, worker: WorkerProcess) -> str | None:
        """Send a new worker the full state. Return the worker's failure, or None. Messages sent meanwhile also reach
        the worker, for frontends that it already has."""
        # Shared listeners come last, because they reset clients of frontends that have not joined yet.
        worker.unsent = dict.fromkeys(sorted(self._frontends, key=lambda it: self._frontends[it].serves_others))
        batch = WorkerBatch(worker)
        batch.messages.append(self._tune)
        while True:
            chunk = list(worker.unsent)[:CHUNK]
            for name in chunk:
                if len(batch.messages) > CHUNK_MESSAGES:
                    break
                del worker.unsent[name]
                sockets = self._frontends[name]
                try:
                    batch.add_first(sockets)
                except OSError as error:
                    return _cannot_listen(sockets.begin, error)
                if sockets.endpoints is not None:
                    batch.messages.append(sockets.endpoints)
                batch.messages.extend(sockets.bindings_of(worker.number, self._clock()))
            reply = await batch.send()
            if reply is None:
                return None
            if isinstance(reply, DoneReply) and reply.failures:
                return reply.failures[0][1]
            if not worker.unsent:
                worker.in_service = True
                return None
            batch = WorkerBatch(worker)

    def _on_stopped(self, worker: WorkerProcess) -> None:
        """Record the counters and affinity bindings of a worker that has ended, and stop counting its connections."""
        self._columns.clear(worker.number)
        self._learn(worker)
        self._keep_counters(worker)

    # Shutdown.

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        self._supervisor.stop_starting()
        await self._supervisor.request_all(StopAccepting)
        for sockets in self._frontends.values():
            sockets.close()
        self._frontends.clear()

    async def adopt(self) -> Entrances:
        """See `DataPlane.adopt`."""
        sockets: dict[int, socket.socket] = {}
        for number, worker in sorted(self._workers.items()):
            if worker.in_service:
                sockets[number], inside = socket.socketpair()
                with inside:
                    worker.request(Adopt, [inside])
        return Entrances(tuple(sockets.values()), tuple(sockets), self._count)

    async def move(self, successor: str) -> tuple[int, int]:
        """See `DataPlane.move`."""
        replies = await self._supervisor.request_all(lambda number: MoveTo(number, successor))
        moves = [reply for reply in replies if isinstance(reply, MoveReply)]
        return sum(move.moved for move in moves), sum(move.left for move in moves)

    async def drain(self, grace_s: float) -> int:
        """See `DataPlane.drain`."""
        replies = await self._supervisor.request_all(lambda number: Drain(number, grace_s))
        return sum(reply.left for reply in replies if isinstance(reply, DrainReply))

    async def close(self) -> None:
        """See `DataPlane.close`. It returns when the worker processes have exited."""
        await self._supervisor.close()
        await self._tasks.close()
        for sockets in self._frontends.values():
            sockets.close()
        self._frontends.clear()
        self._ports.close()
        self._columns.close()


def _cannot_listen(message: Listen, error: OSError) -> str:
    return f"cannot listen on {message.address} port {message.port}: {error.strerror or error}"
