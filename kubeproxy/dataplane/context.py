"""State that all parts of one data plane process share."""

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
    """A client that is being served: an endpoint is being dialed for it, or it is connected."""

    since: float
    """The time of accept, by the reactor's clock."""

    @property
    def targets(self) -> Collection[Target]:
        """Return the endpoint of the connection, or those that are being dialed."""

    def abort(self) -> None:
        """End the connection now. Client and endpoint get a reset."""


_sums_of = attrgetter(*Counters.__struct_fields__)


class FrontendCounters(Counters, eq=False):
    """The counters of one frontend while the byte path adds to them, with the frontend's share of the budget."""

    frontend: FrontendName | None = None
    """The frontend that is counted."""
    share: Share = field(default_factory=Share)
    in_meter: list[int] = field(default_factory=lambda: [0])
    """`bytes_in` in a list of one element. Each direction of a connection has a reference to its own list."""
    out_meter: list[int] = field(default_factory=lambda: [0])
    """`bytes_out` in the same form."""

    def read(self, *, affinity_entries: int) -> Counters:
        """Return a copy that does not change. The balancer knows the number of affinity entries."""
        self.affinity_entries = affinity_entries
        self.bytes_in, self.bytes_out = self.in_meter[0], self.out_meter[0]
        return Counters(*_sums_of(self))


class Context:
    """One reactor, its budgets, settings and live connections."""

    def __init__(self, *, reactor: Reactor, budget: DescriptorBudget, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of flows (see `TurnEnd`)."""
        self.reactor = reactor
        self.budget = budget
        self.memory = MemoryReserve(budget=budget, reactor=reactor)
        self.pipes = PipePool(budget)
        self.routes = Routes()
        self.turn_end = TurnEnd(reactor, send)
        self.step_timeouts = StepTimeouts(reactor)
        self.tune = Tune()
        """The settings in effect."""
        self.live: set[Live] = set()
        self.touched: set[FrontendCounters] = set()
        """The counters that may have changed since they were last read. A listener adds its own when it accepts or
        drops a client; `Engine` removes those that are unchanged and without clients."""
        self.failing: set[Balancer] = set()
        """The balancers that may have ejected endpoints. `Engine` removes those that have none."""
        self.lag = Lag(reactor)
        self.probes: set[Abortable] = set()
        """The probes in progress."""
        self.dial_times = Histogram(DIAL_BUCKETS_S)
        """A histogram of the time from accept to an endpoint's answer, over all frontends."""
        self.ports_exhausted = 0
        """The number of dials that failed because all of this host's ports towards the endpoint were in use."""
        self.looped = 0
        """The number of connections and datagrams that had passed too many proxies."""
        self.adopted = self.adopted_open = 0
        """The number of connections and UDP sessions that another process has begun."""
        self.connection_log = ConnectionLog()
        self.shared_rows: SharedRows | None = None
        """The table in which the workers together count what is open, or None if there is only one process."""
