"""The state shared by all parts of one data plane process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, Protocol

from msgspec import field

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.balancing.open_counts import SharedRows
from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget, Share
from kubeproxy.dataplane.budgets.memory_reserve import MemoryReserve
from kubeproxy.dataplane.budgets.pipe_pool import PipePool
from kubeproxy.dataplane.connection_log import ConnectionLog
from kubeproxy.dataplane.interface import DIAL_BUCKETS_S, Counters
from kubeproxy.dataplane.loop.dial_timeouts import StepTimeouts
from kubeproxy.dataplane.loop.lag import Lag
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.loop.turn_end import TurnEnd
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.sockets.routes import Routes
from kubeproxy.model import FrontendName, Target
from kubeproxy.runtime.histogram import Histogram


class Abortable(Protocol):
    """A probe that is in progress. Its module imports this one."""

    def abort(self) -> None:
        """End the probe now, without a result."""


class Live(Protocol):
    """A client that is being served: it is connected to an endpoint, or an endpoint is being dialed for it."""

    since: float
    """When the client was accepted, by the reactor's clock."""

    @property
    def targets(self) -> Collection[Target]:
        """Return the endpoint of the connection, or the endpoints that are being dialed."""

    def abort(self) -> None:
        """End the connection now. Client and endpoint get a reset."""


_sums_of = attrgetter(*Counters.__struct_fields__)


class FrontendCounters(Counters, eq=False):
    """The counters of one frontend as the byte path updates them, and the frontend's share of the budget."""

    frontend: FrontendName | None = None
    """The frontend to which these counters belong."""
    share: Share = field(default_factory=Share)
    in_meter: list[int] = field(default_factory=lambda: [0])
    """The value of `bytes_in`, in a list with one element to which each flow has a reference."""
    out_meter: list[int] = field(default_factory=lambda: [0])
    """The value of `bytes_out`, in a list like `in_meter`."""

    def read(self, *, affinity_entries: int) -> Counters:
        """Return an immutable copy. The number of affinity entries comes from the balancer."""
        self.affinity_entries = affinity_entries
        self.bytes_in, self.bytes_out = self.in_meter[0], self.out_meter[0]
        return Counters(*_sums_of(self))


class Context:
    """The reactor of a process with its budgets, settings and open connections."""

    def __init__(self, *, reactor: Reactor, budget: DescriptorBudget, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of several flows (see `TurnEnd`)."""
        self.reactor = reactor
        self.budget = budget
        self.memory = MemoryReserve(budget=budget, reactor=reactor)
        self.pipes = PipePool(budget)
        self.routes = Routes()
        self.turn_end = TurnEnd(reactor, send)
        self.step_timeouts = StepTimeouts(reactor)
        self.tune = Tune()
        """The settings in force."""
        self.live: set[Live] = set()
        self.touched: set[FrontendCounters] = set()
        """The counters that may have changed since they were last read. A listener adds its own when it accepts or
        drops a client. `Engine` removes those that have not changed and have no clients."""
        self.failing: set[Balancer] = set()
        """The balancers that may have ejected endpoints. `Engine` removes those without any."""
        self.lag = Lag(reactor)
        self.probes: set[Abortable] = set()
        """The probes in progress."""
        self.dial_times = Histogram(DIAL_BUCKETS_S)
        """A histogram of the seconds from accept to an endpoint's answer, for all frontends together."""
        self.ports_exhausted = 0
        """How many dials failed because all local ports towards the endpoint were in use."""
        self.looped = 0
        """How many connections and datagrams were refused because they had passed through too many proxies."""
        self.adopted = self.adopted_open = 0
        """How many connections and UDP sessions came from another process, and how many of them are open."""
        self.connection_log = ConnectionLog()
        self.shared_rows: SharedRows | None = None
        """The table in which workers count open connections together, or None if there is only one process."""
