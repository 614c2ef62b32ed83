"""The data plane in this process. The asyncio loop drives its reactor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.interface import BalancePreview, Counters, EjectedEndpoint, Ended, Entrances, WorkerStatus
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import NOT_OPEN, Join, Message, RestoreBindings, Retire
from kubeproxy.dataplane.sockets.port_reservation import ReservedPort, ReservedPorts, stop_listening
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.model import Address, FrontendName, Protocol, Target
from kubeproxy.runtime.time_slice import TimeSlice

_Step = TypeVar("_Step")

DRAIN_LOOK_S = 0.05
"""How often, in seconds, a drain checks whether it is complete. This is rare enough to cost nothing, and frequent
enough not to delay a shutdown."""
SLICE_S = 0.001
"""How many seconds of work a query does before it yields to the event loop, which moves the bytes."""


class LocalDataPlane:
    """The data plane in this process, as a `DataPlane` and as its `PortReserver`. It listens on the reserved sockets
    themselves."""

    def __init__(self, *, budget: DescriptorBudget | None = None, rng: random.Random | None = None) -> None:
        """Create the data plane. Call this in a running event loop."""
        self._context = Context(
            reactor=Reactor(), budget=budget or DescriptorBudget.of_this_process(), send=send_backlogs
        )
        self._ports = ReservedPorts(self._context.budget)
        self.engine = Engine(
            self._context,
            open_socket=lambda message: self._ports.of(message).prepare(),
            close_socket=stop_listening,
            rng=rng or random.Random(),
        )
        self._context.reactor.attach(asyncio.get_running_loop())

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> ReservedPort:
        """See `PortReserver.reserve`."""
        return self._ports.reserve(protocol, address, port, claim=claim)

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._ports.share(on)

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """See `DataPlane.send`."""
        failures = self.engine.handle(messages)
        for message in messages:
            if isinstance(message, Join) and not self.engine.serves(message.listener):
                failures[message.frontend] = failures.get(message.listener, NOT_OPEN)
                self.engine.handle((Retire(message.frontend),))
        return failures

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        async for _ in _in_slices(self.engine.changed_counters()):
            pass
        return self.engine.last_counters()

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """See `DataPlane.worker_status`."""
        return (self.engine.worker_status(),)

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """See `DataPlane.ejected`."""
        return dict([ejected async for ejected in _in_slices(self.engine.ejected()) if ejected is not None])

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """See `DataPlane.open_by_endpoint`."""
        return dict([found async for found in _in_slices(self.engine.open_by_endpoint()) if found is not None])

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """See `DataPlane.previews`."""
        preview = self.engine.preview(frontend, client, port)
        return () if preview is None else (preview,)

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """See `DataPlane.open_to`."""
        counts: dict[Address, int] = {}
        async for _ in _in_slices(self.engine.open_to(frozenset(addresses), counts)):
            pass
        return counts

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `DataPlane.bindings`."""
        return [bindings async for bindings in _in_slices(self.engine.bindings()) if bindings is not None]

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        return self.engine.take_ended()

    @property
    def restarts(self) -> int:
        """Return 0, because there is no process to restart."""
        return 0

    @property
    def problem(self) -> str | None:
        """Return None, because no process can die."""
        return None

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        async for _ in _in_slices(self.engine.retire()):
            pass

    @property
    def open_connections(self) -> int:
        """Return the number of open connections and dials in progress."""
        return len(self._context.live)

    async def adopt(self) -> Entrances:
        """Return no sockets, because connections move only between workers."""
        return Entrances()

    async def move(self, successor: str) -> tuple[int, int]:
        """Move nothing, because connections move only between workers."""
        return 0, self.open_connections

    async def drain(self, grace_s: float) -> int:
        """See `DataPlane.drain`."""
        begun = self._context.reactor.clock()
        while left := sum(live.since <= begun for live in self._context.live):
            if self._context.reactor.clock() - begun >= grace_s:
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        return left

    async def close(self) -> None:
        """Close every listener and connection, and free all ports."""
        self.engine.close()
        self._ports.close()
        self._context.reactor.shut()
        self._context.routes.close()


async def _in_slices(steps: Iterable[_Step]) -> AsyncIterator[_Step]:
    """Yield the steps, and let the event loop run after each time slice."""
    time_slice = TimeSlice(SLICE_S)
    for step in steps:
        yield step
        await time_slice.offer()
