"""The endpoint with the fewest open connections, for its weight.

What counts is what is open at this node, over all workers. Endpoints with equally many get clients in turn. Of a
Service with many endpoints only some, drawn for each client, are compared: the spread is nearly as even, and a pick
does not become slower with each endpoint."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kubeproxy.dataplane.balancing.open_counts import OpenCounts
from kubeproxy.model import Balancing, Target

COMPARED = 16
"""Endpoints compared for a pick. With 16 of a thousand, none has more than two above the mean
(``tests/dataplane/balancing/test_policies.py``)."""


class LeastConnections:
    """A `Policy` that looks at what is open."""

    __slots__ = ("_counts", "_rng", "_rotation", "_weights")

    def __init__(self, rng: random.Random, counts: OpenCounts) -> None:
        self._rng = rng
        self._counts = counts
        self._rotation: deque[Target] = deque()
        self._weights: dict[Target, int] = {}

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`. Those that stay keep their places in turn."""
        added = [target for target in endpoints if target not in self._weights]
        self._rng.shuffle(added)
        self._weights = {target: balancing.weight_of(number) for number, target in enumerate(endpoints)}
        self._rotation = deque([target for target in self._rotation if target in self._weights] + added)

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`."""
        rotation = self._rotation
        if len(rotation) > COMPARED:
            # Steps of a length that is drawn come to different endpoints, and neighbours do not meet again and again.
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
            # What it would have with this client, for its weight: an idle endpoint is fuller the smaller it is.
            load = (of(target) + 1) / weights[target]
            if (best is None or load < least) and usable(target):
                best, least = target, load
        return best

    def copy(self) -> LeastConnections:
        """See `Policy.copy`. The copy sees what is open, too."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = LeastConnections(rng, self._counts)
        copy._rotation, copy._weights = self._rotation.copy(), self._weights
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the one that has waited longest first."""
        return tuple(self._rotation)
