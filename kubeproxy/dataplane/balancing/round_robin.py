"""Exact round robin. Pure.

The rotation is a queue: the front is next, and goes to the back when picked. When the set of endpoints changes, those
that stay keep their places and new ones join at the back, so that the position is kept and no endpoint gets two turns
in a round. The first order is shuffled, or the proxies of a thousand nodes would all begin with the same endpoint."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from kubeproxy.model import Balancing, Target


class RoundRobin:
    """A `Policy` that gives each endpoint its turn."""

    __slots__ = ("_rng", "_rotation")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rotation: deque[Target] = deque()

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        known, members = set(self._rotation), set(endpoints)
        added = [target for target in endpoints if target not in known]
        self._rng.shuffle(added)
        self._rotation = deque([target for target in self._rotation if target in members] + added)

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`. An endpoint that is not usable loses its turn."""
        rotation = self._rotation
        for _ in range(len(rotation)):
            target = rotation[0]
            rotation.rotate(-1)
            if usable(target):
                return target
        return None

    def copy(self) -> RoundRobin:
        """See `Policy.copy`."""
        copy = RoundRobin(self._rng)
        copy._rotation = self._rotation.copy()
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the next one first."""
        return tuple(self._rotation)
