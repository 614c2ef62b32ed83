"""A node without a kernel: a Proxier among fakes, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubeproxy.model import Family, FrontendName, Protocol, ServiceName, Target
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.stale_flows import Conntrack, NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.proxier import Kernel, NodeFacts, Periods, PortRange, PortSystemCalls, Proxier, ProxierSettings, Tracker
from kubeproxy.proxier.clock import Clock
from kubeproxy.proxier.kernel_sync import NoRivals, Rivals
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.port_system_calls import FindHolders, no_holders
from kubeproxy.proxier.restrictions import NO_RESTRICTIONS, Restrictions
from kubeproxy.proxier.state import ProxierState
from kubeproxy.runtime.tasks import TaskSet
from tests.proxier.builders import destination
from tests.support.doubles.data_plane import FakeDataPlane, FakePortReserver
from tests.support.doubles.netfilter import FakeNetfilter

SOURCE = "kubernetes"


def settle(state: ProxierState) -> None:
    """Make all moves of a state, with a data plane and a kernel that never refuse."""
    while not state.settled:
        while (step := state.next_step(256)) is not None:
            state.done(step, {})
        state.applied(state.rules.generation)


class FakeClock(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._moved = asyncio.Event()
        self._waiting: tuple[asyncio.Event, float] | None = None

    def now(self) -> float:
        return self.time

    def unix_now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, until: float) -> None:
        self._waiting = event, until
        try:
            while self.time < until and not event.is_set():
                self._moved.clear()
                waits = [asyncio.create_task(event.wait()), asyncio.create_task(self._moved.wait())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
        finally:
            self._waiting = None

    @property
    def idle(self) -> bool:
        """Whether a task waits and its event is not set."""
        return self._waiting is not None and not self._waiting[0].is_set() and self.time < self._waiting[1]

    @property
    def next_at(self) -> float:
        """The time for which a task waits."""
        assert self._waiting is not None
        return self._waiting[1]

    def move(self, by_s: float) -> None:
        self.time += by_s
        self._moved.set()


class Diary(ProxierObserver):
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.trigger_times: list[str] = []
        self.problems: Mapping[ServiceName, Sequence[str]] = {}
        self.health: Mapping[ServiceName, tuple[int, int]] = {}
        self.drains: Mapping[ServiceName, DrainState] = {}

    def queued(self) -> None:
        self.entries.append("queued")

    def settled(self, trigger_times: Sequence[str]) -> None:
        self.entries.append("settled")
        self.trigger_times += trigger_times

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        self.entries.append(f"programmed{' full' if full else ''}{' changed' if changed else ''}")

    def failed(self, error: KubeproxyError) -> None:
        self.entries.append(f"failed: {error}")

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        self.problems = problems

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        if deleted:
            self.entries.append(f"reconciled {deleted}")

    def conntrack_failed(self, error: KubeproxyError) -> None:
        self.entries.append(f"conntrack failed: {error}")

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        self.health = wanted

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        self.drains = drains


class Node:
    """A proxier with its fakes, and helpers to inspect them."""

    def __init__(
        self,
        *,
        sources: Iterable[str] = (SOURCE,),
        port_range: PortRange | None = None,
        periods: Periods = Periods(),  # noqa: B008 - frozen
        families: Iterable[Family] = (Family.IPV4,),
        protocols: Iterable[Protocol] = (Protocol.TCP,),
        facts: NodeFacts = NodeFacts(),  # noqa: B008 - frozen
        conntrack: Conntrack | None = None,
        restrictions: Restrictions = NO_RESTRICTIONS,
        find_holders: FindHolders = no_holders,
        rivals: Rivals | None = None,
        settings: ProxierSettings | None = None,
        kernel: Netfilter | None = None,
    ) -> None:
        self.tracker = Tracker(sources)
        self.data_plane = FakeDataPlane()
        self.netfilter = FakeNetfilter()
        self.reserver = FakePortReserver()
        self.clock = FakeClock()
        self.diary = Diary()
        self.crashes: list[BaseException] = []
        self._tasks = TaskSet(lambda _, error: self.crashes.append(error))
        self._run: asyncio.Task[None] | None = None
        self.proxier = Proxier(
            tracker=self.tracker,
            data_plane=self.data_plane,
            kernel=Kernel(kernel or self.netfilter, conntrack or NoConntrack(), rivals or NoRivals()),
            ports=PortSystemCalls(self.reserver, find_holders),
            settings=settings
            or ProxierSettings(
                families=frozenset(families),
                protocols=frozenset(protocols),
                facts=facts,
                restrictions=restrictions,
                port_range=port_range,
                periods=periods,
            ),
            observer=self.diary,
            clock=self.clock,
            jitter=lambda: 0.0,
        )

    def list_nothing(self, source: str = SOURCE) -> None:
        """The source has listed both kinds, and there is nothing."""
        self.tracker.replace_services(source, ())
        self.tracker.replace_slices(source, ())

    def use(self, **changes: Any) -> None:
        """Change some of the settings."""
        self.proxier.use(replace(self.proxier.settings, **changes))

    def start(self) -> None:
        """Let the proxier run."""
        self._run = self._tasks.start(self.proxier.run(), name="proxier")

    async def interrupt(self) -> None:
        """Cancel the proxier wherever it is."""
        assert self._run is not None
        await self._tasks.end(self._run)

    async def rest(self) -> None:
        """Run until the proxier waits, for time or for changes."""
        for _ in range(100_000):
            assert not self.crashes, self.crashes
            if self.clock.idle:
                return
            await asyncio.sleep(0)
        raise AssertionError("the proxier finds no rest")

    async def settle(self) -> None:
        """Let the proxier run, for the first time or again, until everything is in effect."""
        if self._run is None or self._run.done():
            self.start()
        await self.rest()
        for _ in range(3):
            if self.proxier.view.snapshot().pending_since is None:
                return
            await self.pass_time(1.0)
        raise AssertionError("a change is not in effect")

    async def pass_time(self, by_s: float) -> None:
        """Let time pass, and run what is due."""
        self.clock.move(by_s)
        await self.rest()

    async def close(self) -> None:
        """Stop, and check that the proxier has released everything."""
        try:
            await self.proxier.stop(cleanup=False)
            self.proxier.close()
        finally:
            await self._tasks.close()
        assert not self.reserver.held
        assert not self.crashes, self.crashes

    def proxy_port(self, name: FrontendName) -> int:
        """The proxy port of a frontend."""
        return self.data_plane.listening[name].port

    def answers(self, where: str) -> tuple[Target, ...] | Fate:
        """The endpoints that answer a client of `where` now; without any, its fate."""
        met = self.netfilter.trace(destination(where))
        if met.fate is not Fate.PROXIED:
            return met.fate
        for name, listen in self.data_plane.listening.items():
            if (listen.protocol, listen.port) == (destination(where).protocol, met.proxy_port):
                joined = self.data_plane.joined.values()
                own = (it.frontend for it in joined if it.listener == name and destination(where) in it.destinations)
                return self.data_plane.endpoints[next(own) if listen.shared else name].endpoints
        raise AssertionError(f"the rules lead {where} to port {met.proxy_port}, which has no listener")


MakeNode = Callable[..., Node]
"""Makes a node with these settings."""
