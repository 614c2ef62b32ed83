"""What all parts of one running data plane share."""

from __future__ import annotations

from typing import Protocol

from kubeproxy.dataplane.descriptors import DescriptorBudget
from kubeproxy.dataplane.ladder import Ladder
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.pipes import PipePool
from kubeproxy.dataplane.reactor import Reactor

BUFFER_BYTES = 64 * 1024


class Live(Protocol):
    """A client that is being served: dialed for, or connected."""

    since: float
    """When it was accepted, by the reactor's clock."""

    def abort(self) -> None:
        """End it now; both sides see a reset."""


class Tally:
    """Plain sums of one frontend, added to on the byte path and read when asked. The bytes stand in lists of one, so
    that each direction can be handed its own."""

    __slots__ = ("accepted", "active", "bytes_in", "bytes_out", "dial_retries", "dropped", "evicted", "failed")

    def __init__(self) -> None:
        self.accepted = 0
        self.active = 0
        self.failed = 0
        self.dial_retries = 0
        self.dropped = 0
        self.evicted = 0
        self.bytes_in = [0]
        self.bytes_out = [0]


class Context:
    """One reactor and what hangs on it."""

    def __init__(self, *, reactor: Reactor, budget: DescriptorBudget) -> None:
        self.reactor = reactor
        self.budget = budget
        self.pipes = PipePool(budget)
        self.ladder = Ladder(reactor)
        self.tune = Tune()
        self.live: set[Live] = set()
        self.buffer = bytearray(BUFFER_BYTES)
        """One for all reads: what was read is sent, or copied out, before the next read."""
        self.view = memoryview(self.buffer)
