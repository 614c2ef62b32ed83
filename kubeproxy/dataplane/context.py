"""State that all parts of one data plane process share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget, Share
from kubeproxy.dataplane.budgets.memory_reserve import MemoryReserve
from kubeproxy.dataplane.budgets.pipe_pool import PipePool
from kubeproxy.dataplane.connection_log import ConnectionLog
from kubeproxy.dataplane.interface import DIAL_BUCKETS_S
from kubeproxy.dataplane.loop.dial_timeouts import StepTimeouts
from kubeproxy.dataplane.loop.lag import Lag
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.loop.turn_end import TurnEnd
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.sockets.routes import Routes
from kubeproxy.model import FrontendName, Target
from kubeproxy.runtime.histogram import Histogram


class Abortable(Protocol):
    """A probe in progress."""

    def abort(self) -> None:
        """End it now, without a result."""


class Live(Protocol):
    """A client that is being served: its endpoint is dialed, or connected."""

    since: float
    """Time of accept, by the reactor's clock."""

    @property
    def targets(self) -> Collection[Target]:
        """The endpoint that it is connected to, or those that are being dialed."""

    def abort(self) -> None:
        """End it now; client and endpoint get a reset."""


class FrontendCounters:
    """Sums of one frontend, added to on the byte path (see `Counters`).

    The bytes are in lists of one element, so that each direction of a connection holds a reference to its own."""

    __slots__ = (
        "accepted",
        "active",
        "bytes_in",
        "bytes_out",
        "dial_retries",
        "dropped",
        "evicted",
        "frontend",
        "looped",
        "no_endpoint",
        "refused",
        "share",
        "silent",
        "unable",
        "unreachable",
    )

    def __init__(self) -> None:
        self.frontend: FrontendName | None = None
        """The frontend that is counted."""
        self.share = Share()
        self.accepted = 0
        self.active = 0
        self.refused = 0
        self.silent = 0
        self.no_endpoint = 0
        self.unable = 0
        self.unreachable = 0
        self.dial_retries = 0
        self.dropped = 0
        self.evicted = 0
        self.looped = 0
        self.bytes_in = [0]
        self.bytes_out = [0]


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
        """Counters that may have changed since they were last read. A listener adds its own when it accepts or drops a
        client; `Engine` removes those that are unchanged and without clients."""
        self.lag = Lag(reactor)
        self.probes: set[Abortable] = set()
        """Probes in progress."""
        self.dial_times = Histogram(DIAL_BUCKETS_S)
        """From accept to an endpoint's answer, over all frontends."""
        self.ports_exhausted = 0
        """Dials that failed because all of this host's ports towards the endpoint were in use."""
        self.looped = 0
        """Connections and datagrams that had passed too many proxies."""
        self.connection_log = ConnectionLog()
