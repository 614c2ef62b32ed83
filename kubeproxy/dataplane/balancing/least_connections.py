"""The policy that picks the endpoint with the fewest open connections, in proportion to its weight.

It counts what is open at this node, over all workers. Endpoints with equally many connections get clients in turn. If a
Service has many endpoints, only some are compared, drawn anew for each client. The spread is nearly as even, and a pick
does not become slower with each endpoint.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kubeproxy.dataplane.balancing.open_counts import OpenCounts
from kubeproxy.model import Balancing, Target

COMPARED = 16
"""The number of endpoints compared for a pick. With 16 of a thousand compared, no endpoint has more than two
connections above the mean (``tests/dataplane/balancing/test_policies.py``)."""


class LeastConnections:
    """A `Policy` that compares what is open."""

    __slots__ = ("_counts", "_rng", "_rotation", "_weights")

    def __init__(self, rng: random.Random, counts: OpenCounts) -> None:
        self._rng = rng
        self._counts = counts
        self._rotation: deque[Target] = deque()
        self._weights: dict[Target, int] = {}

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """Replace the endpoints; see `Policy.update`. Endpoints that stay keep their places in turn."""
        added = [target for target in endpoints if target not in self._weights]
        self._rng.shuffle(added)
        self._weights = {target: balancing.weight_of(number) for number, target in enumerate(endpoints)}
        self._rotation = deque([target for target in self._rotation if target in self._weights] + added)

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`."""
        rotation = self._rotation
        if len(rotation) > COMPARED:
            # A drawn length of the steps leads to different endpoints, so the same neighbours are not compared again
            # and again.
            step = 1 + int(self._rng.random() * (len(rotation) - 1) / COMPARED)
            rotation.rotate(int(self._rng.random() * len(rotation)))
            best = self._least(islice(rotation, 0, step * COMPARED, step), usable)
            if best is not None:
                return best
        best = self._least(rotation, usable)
        if best is not None:
            rotation.remove(best)
            rotation.append(best)
        return best

    def _least(self, among: Iterable[Target], usable: Callable[[Target], bool]) -> Target | None:
        weights, of = self._weights, self._counts.of
        best: Target | None = None
        least = 0.0
        for target in among:
            # The number of connections with this client, in proportion to the weight. So an idle endpoint of small
            # weight counts as fuller.
            load = (of(target) + 1) / weights[target]
            if (best is None or load < least) and usable(target):
                best, least = target, load
        return best

    def copy(self) -> LeastConnections:
        """Return a copy, which counts what is open, too."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = LeastConnections(rng, self._counts)
        copy._rotation, copy._weights = self._rotation.copy(), self._weights
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the one first that has waited longest."""
        return tuple(self._rotation)
