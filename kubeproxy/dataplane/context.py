"""What all parts of one running data plane share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

from kubeproxy.dataplane.connection_log import ConnectionLog
from kubeproxy.dataplane.interface import DIAL_BUCKETS_S
from kubeproxy.dataplane.loop.lag import Lag
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.loop.timeouts import StepTimeouts
from kubeproxy.dataplane.loop.write_queue import WriteQueue
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget, Share
from kubeproxy.dataplane.resources.memory_reserve import MemoryReserve
from kubeproxy.dataplane.resources.pipe_pool import PipePool
from kubeproxy.model import FrontendName


class Abortable(Protocol):
    """An endpoint is being tried."""

    def abort(self) -> None:
        """End it now, whatever would have come of it."""


class Live(Protocol):
    """A client that is being served: dialed for, or connected."""

    since: float
    """When it was accepted, by the reactor's clock."""

    def abort(self) -> None:
        """End it now; both sides see a reset."""


class FrontendCounters:
    """Plain sums of one frontend, added to on the byte path and read when asked (see `Counters`). The bytes stand in
    lists of one, so that each direction can be handed its own."""

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
    )

    def __init__(self) -> None:
        self.frontend: FrontendName | None = None
        """Whose it is."""
        self.share = Share()
        self.accepted = 0
        self.active = 0
        self.refused = 0
        self.silent = 0
        self.no_endpoint = 0
        self.unable = 0
        self.dial_retries = 0
        self.dropped = 0
        self.evicted = 0
        self.looped = 0
        self.bytes_in = [0]
        self.bytes_out = [0]


class DialTimes:
    """A histogram of the time from accept to an endpoint's answer, over all frontends."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(DIAL_BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """One more answer."""
        self.counts[bisect_left(DIAL_BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class Context:
    """One reactor and what hangs on it."""

    def __init__(self, *, reactor: Reactor, budget: DescriptorBudget, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of flows (see `WriteQueue`)."""
        self.reactor = reactor
        self.budget = budget
        self.memory = MemoryReserve(budget=budget, reactor=reactor)
        self.pipes = PipePool(budget)
        self.write_queue = WriteQueue(reactor, send)
        self.step_timeouts = StepTimeouts(reactor)
        self.tune = Tune()
        """The settings in effect."""
        self.live: set[Live] = set()
        self.touched: set[FrontendCounters] = set()
        """Those that may have changed since they were last looked at: whoever takes in a client, or turns one away
        unheard, puts its own here, and whoever finds one unchanged and without clients takes it out."""
        self.lag = Lag(reactor)
        self.probes: set[Abortable] = set()
        """Endpoints that are being tried, for nobody."""
        self.dial_times = DialTimes()
        self.ports_exhausted = 0
        """Dials that failed because all of this host's ports towards the endpoint were in use."""
        self.looped = 0
        """Connections and datagrams that had come through too many proxies."""
        self.connection_log = ConnectionLog()
