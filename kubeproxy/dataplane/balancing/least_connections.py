"""The policy that picks the endpoint with the fewest open connections, in proportion to its weight.

It uses the connections that all workers of this node have open. Among endpoints with equal load, weighted turns decide.
So while nothing is open, an endpoint of small weight still gets its small share. If a Service has many endpoints, only
some are compared for each client: the next one in order, and others that follow it at equal steps. The length of the
steps is random for each client. The result is nearly as even, and the cost of a pick does not grow with the number of
endpoints.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from kubeproxy.dataplane.balancing.open_counts import OpenCounts
from kubeproxy.model import Balancing, Target

COMPARED = 16
"""The number of endpoints compared for a pick. If 16 of a thousand are compared, no endpoint has more than two
connections above the mean (``tests/dataplane/balancing/test_policies.py``)."""


class LeastConnections:
    """A `Policy` that compares the numbers of open connections."""

    __slots__ = ("_counts", "_now", "_order", "_place", "_rng", "_turns", "_weights")

    def __init__(self, rng: random.Random, counts: OpenCounts) -> None:
        self._rng = rng
        self._counts = counts
        self._order: list[Target] = []
        self._place = 0
        """The position in `_order` from which the next pick starts, if it compares only some endpoints."""
        self._weights: dict[Target, int] = {}
        self._turns: dict[Target, float] = {}
        """The time of each endpoint's next turn, on a virtual clock that advances with the turns. The time between two
        turns of an endpoint is the inverse of its weight."""
        self._now = 0.0
        """The time of the latest turn, on the same virtual clock."""

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
            # With a random step, each pick compares different endpoints.
            best = self._least([order[(place + step * n) % places] for n in range(COMPARED)], usable)
        if best is None:
            best = self._least(order, usable)
        if best is not None:
            # An endpoint that was busy for long must not catch up on missed turns.
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
            # The load is the number of connections including this client's, divided by the weight.
            load = (count + 1) / weights[target]
            if best is None or load < least or (load == least and turns[target] < turns[best]):
                best, least = target, load
            if first is None or turns[target] < turns[first]:
                first = target
        # If only loads were compared, the endpoint with the largest weight among idle ones would get every client.
        return first if idle else best

    def copy(self) -> LeastConnections:
        """Return a copy that will make the same picks as this policy. Both read the same counts of open connections."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = LeastConnections(rng, self._counts)
        copy._order, copy._place, copy._weights = self._order, self._place, self._weights
        copy._turns, copy._now = self._turns.copy(), self._now
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints in the order of their turns."""
        return sorted(self._order, key=self._turns.__getitem__)
