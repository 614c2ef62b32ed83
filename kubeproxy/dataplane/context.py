"""What all parts of one running data plane share."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from kubeproxy.dataplane.descriptors import DescriptorBudget, Share
from kubeproxy.dataplane.interface import DIAL_BUCKETS_S
from kubeproxy.dataplane.journal import Journal
from kubeproxy.dataplane.keepalive import KeepaliveRounds
from kubeproxy.dataplane.ladder import Ladder
from kubeproxy.dataplane.lag import Lag
from kubeproxy.dataplane.memory import MemoryReserve
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.outbox import Outbox
from kubeproxy.dataplane.pipes import PipePool
from kubeproxy.dataplane.reactor import Reactor
from kubeproxy.dataplane.sweep import HalfClosedSweep
from kubeproxy.model import FrontendName


class Trial(Protocol):
    """An endpoint is being tried."""

    def abort(self) -> None:
        """End it now, whatever would have come of it."""


class Live(Protocol):
    """A client that is being served: dialed for, or connected."""

    since: float
    """When it was accepted, by the reactor's clock."""

    def abort(self) -> None:
        """End it now; both sides see a reset."""


class Tally:
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
        "nobody",
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
        self.nobody = 0
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

    def __init__(self, *, reactor: Reactor, budget: DescriptorBudget) -> None:
        self.reactor = reactor
        self.budget = budget
        self.memory = MemoryReserve(budget=budget, reactor=reactor)
        self.pipes = PipePool(budget)
        self.outbox = Outbox(reactor)
        self.ladder = Ladder(reactor)
        self._tune = Tune()
        self.live: set[Live] = set()
        self.touched: set[Tally] = set()
        """Those that may have changed since they were last looked at: whoever takes in a client, or turns one away
        unheard, puts its own here, and whoever finds one unchanged and without clients takes it out."""
        self.lag = Lag(reactor)
        self.trials: set[Trial] = set()
        """Endpoints that are being tried, for nobody."""
        self.dial_times = DialTimes()
        self.portless = 0
        """Dials that failed because all of this host's ports towards the endpoint were in use."""
        self.looped = 0
        """Connections and datagrams that had come through too many proxies."""
        self.journal = Journal()
        self._sweep = HalfClosedSweep(self)
        self._sweep.restart()
        self._keepalive = KeepaliveRounds(self)
        self._keepalive.restart()

    @property
    def tune(self) -> Tune:
        """The settings in effect."""
        return self._tune

    @tune.setter
    def tune(self, tune: Tune) -> None:
        before, self._tune = self._tune, tune
        if (tune.half_closed_idle_s, tune.unanswered_idle_s) != (before.half_closed_idle_s, before.unanswered_idle_s):
            self._sweep.restart()
        if tune.keepalive_s != before.keepalive_s:
            self._keepalive.restart()
