"""The policy that picks the endpoint with the fewest open connections, in proportion to its weight.

It counts what is open at this node, over all workers. Endpoints with equally many connections get clients in turn. If a
Service has many endpoints, only some are compared for each client: the one whose turn it is, and others at a distance
that is drawn. The spread is nearly as even, and a pick does not become slower with each endpoint.
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

    __slots__ = ("_counts", "_rng", "_rotation", "_turn", "_weights")

    def __init__(self, rng: random.Random, counts: OpenCounts) -> None:
        self._rng = rng
        self._counts = counts
        self._rotation: list[Target] = []
        """The endpoints. If all are compared, the one that has waited longest for a client is the first."""
        self._turn = 0
        """The place of the next endpoint in turn, if some are compared."""
        self._weights: dict[Target, int] = {}

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """Replace the endpoints; see `Policy.update`. Endpoints that stay keep their places in turn."""
        added = [target for target in endpoints if target not in self._weights]
        self._rng.shuffle(added)
        self._weights = {target: balancing.weight_of(number) for number, target in enumerate(endpoints)}
        self._rotation = [target for target in self.endpoints if target in self._weights] + added
        self._turn = 0

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`."""
        rotation, places = self._rotation, len(self._rotation)
        if places > COMPARED:
            turn, step = self._turn, 1 + int(self._rng.random() * (places // COMPARED))
            self._turn = (turn + 1) % places
            # A distance that is drawn leads to other endpoints each time, so the same ones are not compared again and
            # again.
            best = self._least([rotation[(turn + step * n) % places] for n in range(COMPARED)], usable)
            return best if best is not None else self._least(rotation, usable)
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
        copy._rotation, copy._turn, copy._weights = self._rotation.copy(), self._turn, self._weights
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the one whose turn it is first."""
        return (*self._rotation[self._turn :], *self._rotation[: self._turn])
