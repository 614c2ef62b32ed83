"""The policy that draws an endpoint at random for each client."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from kubeproxy.model import Balancing, Target

DRAWS = 4
"""How many random draws are made before all usable endpoints are listed. Nearly always the first draw is usable."""


class AtRandom:
    """A `Policy` that draws an endpoint for each client."""

    __slots__ = ("_endpoints", "_rng", "_sums")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._endpoints: tuple[Target, ...] = ()
        self._sums: tuple[int, ...] = ()
        """The running sums of the weights, by endpoint."""

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        self._endpoints = tuple(endpoints)
        self._sums = tuple(accumulate(map(balancing.weight_of, range(len(endpoints)))))

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """Pick an endpoint; see `Policy.pick`."""
        endpoints, sums = self._endpoints, self._sums
        for _ in range(DRAWS if endpoints else 0):
            target = endpoints[bisect_right(sums, int(self._rng.random() * sums[-1]))]
            if usable(target):
                return target
        left = [number for number, target in enumerate(endpoints) if usable(target)]
        weights = [sums[number] - (sums[number - 1] if number else 0) for number in left]
        return endpoints[self._rng.choices(left, weights)[0]] if left else None

    def copy(self) -> AtRandom:
        """Return a copy that will make the same draws as this policy."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = AtRandom(rng)
        copy._endpoints, copy._sums = self._endpoints, self._sums
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, in no particular order."""
        return self._endpoints
