"""The data plane in this very process, its reactor driven by the asyncio loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TypeVar

from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.interface import BalancePreview, Counters, EjectedEndpoint, Ended, WorkerStatus
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import Message, RestoreBindings
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget
from kubeproxy.dataplane.sockets.held_ports import HeldPorts
from kubeproxy.dataplane.sockets.reserved_ports import HeldPort, stop_listening
from kubeproxy.dataplane.tcp.connection import send_backlogs
from kubeproxy.model import Address, FrontendName, Protocol

_Step = TypeVar("_Step")

DRAIN_LOOK_S = 0.05
"""How often a drain looks whether it is over: rare enough to cost nothing, often enough not to be waited for."""
BREATH_S = 0.001
"""How long one goes over all frontends before the loop, which moves the bytes, gets its turn."""


class LocalDataPlane:
    """A `DataPlane` and the `PortReserver` that goes with it: what listens is the reserved socket itself."""

    def __init__(self, *, budget: DescriptorBudget | None = None, rng: random.Random | None = None) -> None:
        """To be made inside a running event loop."""
        self._context = Context(
            reactor=Reactor(), budget=budget or DescriptorBudget.of_this_process(), send=send_backlogs
        )
        self._ports = HeldPorts(self._context.budget)
        self.engine = Engine(
            self._context,
            open_socket=lambda message: self._ports.of(message).lend(),
            close_socket=stop_listening,
            rng=rng or random.Random(),
        )
        self._context.reactor.attach(asyncio.get_running_loop())

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> HeldPort:
        """See `PortReserver.reserve`."""
        return self._ports.reserve(protocol, address, port, claim=claim)

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._ports.share(on)

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Put messages into effect; what could not be done, by frontend."""
        return self.engine.handle(messages)

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        async for _ in _breathing(self.engine.news()):
            pass
        return self.engine.told()

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """See `DataPlane.worker_status`."""
        return (self.engine.worker_status(),)

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """See `DataPlane.ill`."""
        return dict([ejected async for ejected in _breathing(self.engine.ejected()) if ejected is not None])

    async def previews(self, frontend: FrontendName, client: Address) -> Sequence[BalancePreview]:
        """See `DataPlane.prospects`."""
        preview = self.engine.preview(frontend, client)
        return () if preview is None else (preview,)

    async def bindings(self) -> Sequence[RestoreBindings]:
        """See `DataPlane.bindings`."""
        return [remembered async for remembered in _breathing(self.engine.bindings()) if remembered is not None]

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        return self.engine.take_ended()

    @property
    def restarts(self) -> int:
        """None: it lives and dies with this process."""
        return 0

    @property
    def problem(self) -> str | None:
        """None: it lives and dies with this process."""
        return None

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        async for _ in _breathing(self.engine.retire()):
            pass

    @property
    def open_connections(self) -> int:
        """Clients being served or dialed for."""
        return len(self._context.live)

    async def drain(self, grace_s: float) -> int:
        """Wait for the connections open now, at most that long; how many are left."""
        begun = self._context.reactor.clock()
        while left := sum(live.since <= begun for live in self._context.live):
            if self._context.reactor.clock() - begun >= grace_s:
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        return left

    async def close(self) -> None:
        """Close every listener and connection, and give all ports back."""
        self.engine.close()
        self._ports.close()
        self._context.reactor.shut()


async def _breathing(steps: Iterable[_Step]) -> AsyncIterator[_Step]:
    """The same, with a breath of the event loop in between."""
    until = time.monotonic() + BREATH_S
    for step in steps:
        yield step
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + BREATH_S
