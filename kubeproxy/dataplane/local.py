"""The data plane in this very process, its reactor driven by the asyncio loop."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import Mapping, Sequence

from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.descriptors import DescriptorBudget
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.interface import Counters, Ill, Prospect, Vitals
from kubeproxy.dataplane.messages import Listen, Message
from kubeproxy.dataplane.ports import HeldPort
from kubeproxy.dataplane.reactor import Reactor
from kubeproxy.model import Address, FrontendName, Protocol

DRAIN_LOOK_S = 0.05
"""How often a drain looks whether it is over: rare enough to cost nothing, often enough not to be waited for."""


class LocalDataPlane:
    """A `DataPlane` and the `PortReserver` that goes with it: what listens is the reserved socket itself."""

    def __init__(self, *, budget: DescriptorBudget | None = None, rng: random.Random | None = None) -> None:
        """To be made inside a running event loop."""
        self._context = Context(reactor=Reactor(), budget=budget or DescriptorBudget.of_this_process())
        self._held: dict[tuple[Protocol, Address, int], HeldPort] = {}
        self.engine = Engine(self._context, open_socket=self._socket_of, rng=rng or random.Random())
        self._context.reactor.attach(asyncio.get_running_loop())

    def reserve(self, protocol: Protocol, address: Address, port: int) -> HeldPort:
        """Hold a port to listen on. OSError when it is taken."""
        if not self._context.budget.take(1):
            raise OSError(errno.EMFILE, "all descriptors are in use; raise the limit on open files")
        try:
            held = HeldPort(protocol, address, port, on_release=self._released)
        except BaseException:
            self._context.budget.give(1)
            raise
        self._held[protocol, address, held.port] = held
        return held

    def _released(self, held: HeldPort) -> None:
        del self._held[held.protocol, held.address, held.port]
        self._context.budget.give(1)

    def _socket_of(self, message: Listen) -> socket.socket:
        held = self._held.get((message.protocol, message.address, message.port))
        if held is None:
            raise OSError(errno.EINVAL, "it was not reserved")
        return held.lend()

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Put messages into effect; what could not be done, by frontend."""
        return self.engine.handle(messages)

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        return self.engine.counters()

    async def vitals(self) -> Sequence[Vitals]:
        """See `DataPlane.vitals`."""
        return (self.engine.vitals(),)

    async def ill(self) -> Mapping[FrontendName, Sequence[Ill]]:
        """See `DataPlane.ill`."""
        return self.engine.ill()

    async def prospects(self, frontend: FrontendName, client: Address) -> Sequence[Prospect]:
        """See `DataPlane.prospects`."""
        prospect = self.engine.prospect(frontend, client)
        return () if prospect is None else (prospect,)

    @property
    def restarts(self) -> int:
        """None: it lives and dies with this process."""
        return 0

    @property
    def trouble(self) -> str | None:
        """None: it lives and dies with this process."""
        return None

    async def retire(self) -> None:
        """See `DataPlane.retire`."""
        self.engine.retire()

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
        for held in list(self._held.values()):
            held.release()
        self._context.reactor.shut()
