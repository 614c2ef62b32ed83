"""The policy that picks the endpoint with the fewest open connections, in proportion to its weight.

It counts what is open at this node, over all workers. Between endpoints that are equally full, weighted turns decide:
so while nothing is open, an endpoint of small weight gets its small share, too. If a Service has many endpoints, only
some are compared for each client: the one whose place comes next, and others at a distance that is drawn. The spread is
nearly as even, and a pick does not become slower with each endpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from kubeproxy.dataplane.balancing.open_counts import OpenCounts
from kubeproxy.model import Balancing, Target

COMPARED = 16
"""The number of endpoints compared for a pick. With 16 of a thousand compared, no endpoint has more than two
connections above the mean (``tests/dataplane/balancing/test_policies.py``)."""


class LeastConnections:
    """A `Policy` that compares what is open."""

    __slots__ = ("_counts", "_now", "_order", "_place", "_rng", "_turns", "_weights")

    def __init__(self, rng: random.Random, counts: OpenCounts) -> None:
        self._rng = rng
        self._counts = counts
        self._order: list[Target] = []
        self._place = 0
        """The place in the order that comes next, if only some endpoints are compared."""
        self._weights: dict[Target, int] = {}
        self._turns: dict[Target, float] = {}
        """When the next turn of each endpoint is, on a clock that advances with the turns. The time between two turns
        of an endpoint is the inverse of its weight."""
        self._now = 0.0
        """The latest turn that an endpoint has had, on the same clock."""

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """Replace the endpoints; see `Policy.update`. Endpoints that stay keep their turns."""
        added = [target for target in endpoints if target not in self._weights]
        self._rng.shuffle(added)
        self._weights = {target: balancing.weight_of(number) for number, target in enumerate(endpoints)}
        self._order = [target for target in self._order if target in self._weights] + added
        self._turns = {target: self._turns.get(target, self._now) for target in self._order}
        self._place = 0

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`."""
        order, places = self._order, len(self._order)
        best = None
        if places > COMPARED:
            place, step = self._place, 1 + int(self._rng.random() * (places // COMPARED))
            self._place = (place + 1) % places
            # A distance that is drawn leads to other endpoints each time, so the same ones are not compared again and
            # again.
            best = self._least([order[(place + step * n) % places] for n in range(COMPARED)], usable)
        if best is None:
            best = self._least(order, usable)
        if best is not None:
            # An endpoint that was full for long does not make up for turns that it has missed.
            self._now = max(self._now, self._turns[best])
            self._turns[best] = self._now + 1 / self._weights[best]
        return best

    def _least(self, among: Iterable[Target], usable: Callable[[Target], bool]) -> Target | None:
        weights, turns, of = self._weights, self._turns, self._counts.of
        best: Target | None = None
        first: Target | None = None
        least = 0.0
        idle = True
        for target in among:
            if not usable(target):
                continue
            if count := of(target):
                idle = False
            # The number of connections with this client, in proportion to the weight.
            load = (count + 1) / weights[target]
            if best is None or load < least or (load == least and turns[target] < turns[best]):
                best, least = target, load
            if first is None or turns[target] < turns[first]:
                first = target
        # By their loads, the heaviest of idle endpoints would get every client.
        return first if idle else best

    def copy(self) -> LeastConnections:
        """Return a copy, which counts what is open, too."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = LeastConnections(rng, self._counts)
        copy._order, copy._place, copy._weights = self._order, self._place, self._weights
        copy._turns, copy._now = self._turns.copy(), self._now
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the one whose turn it is first."""
        return sorted(self._order, key=self._turns.__getitem__)
