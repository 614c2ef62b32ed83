"""A draw for each client. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kubeproxy.model import Balancing, Target

DRAWS = 4
"""Draws from all endpoints, before the usable ones are listed: nearly always the first is usable."""


class AtRandom:
    """A `Policy` that draws an endpoint for each client."""

    __slots__ = ("_endpoints", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._endpoints: tuple[Target, ...] = ()

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        self._endpoints = tuple(endpoints)

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`."""
        rng, endpoints = self._rng, self._endpoints
        for _ in range(DRAWS if endpoints else 0):
            if usable(target := rng.choice(endpoints)):
                return target
        left = [target for target in endpoints if usable(target)]
        return rng.choice(left) if left else None

    def copy(self) -> AtRandom:
        """See `Policy.copy`. The draws of the copy are the next ones, too."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        copy = AtRandom(rng)
        copy._endpoints = self._endpoints
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, in no order."""
        return self._endpoints
