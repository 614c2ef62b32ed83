"""Exact round robin, by weight.

Endpoints with equal weights form a queue: the endpoint at the front is picked and moves to the back. With different
weights, each endpoint has a time for its next turn, and the endpoint with the earliest time is picked. Its next turn is
then later by a stride that is inversely proportional to its weight, so turns are evenly distributed. When the set of
endpoints or a weight changes, remaining endpoints keep their places, and new endpoints have their first turn a whole
round later. So no endpoint gets two turns in a round. The first order is random, because otherwise the proxies of a
thousand nodes would all start with the same endpoint.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from kubeproxy.model import Balancing, Target

_EMPTY: Final[deque[Target]] = deque()
"""An empty queue shared by all frontends whose endpoints have different weights, because an empty deque takes 600
bytes."""
STRIDE = 1 << 32
"""The stride for weight 1. Strides are integers, so that no rounding errors accumulate."""


class RoundRobin:
    """A `Policy` that gives each endpoint its turn."""

    __slots__ = ("_queue", "_rng", "_strides", "_turns")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._strides: dict[Target, int] = {}
        self._queue = _EMPTY
        """The endpoints in order, if all have the same weight. A queue is four times as fast as the heap."""
        self._turns: list[tuple[int, Target]] = []
        """A heap with the next turn of each endpoint, if the weights differ."""

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        known, before = self._waits(), self._strides
        self._strides = {target: STRIDE // balancing.weight_of(number) for number, target in enumerate(endpoints)}
        waits: dict[Target, int] = {}
        for target, stride in self._strides.items():
            if target in known:
                waits[target] = known[target] * stride // before[target]
            else:
                waits[target] = self._rng.randrange(stride) + (stride if known else 0)
        in_order = sorted(waits, key=waits.__getitem__)
        if len(set(self._strides.values())) <= 1:
            self._queue, self._turns = deque(in_order), []
        else:
            self._queue, self._turns = _EMPTY, [(waits[target], target) for target in in_order]

    def _waits(self) -> dict[Target, int]:
        """Return how long each endpoint waits for its next turn, in the unit of the strides."""
        if self._turns:
            now = self._turns[0][0]
            return {target: at - now for at, target in self._turns}
        places = len(self._queue)
        return {target: self._strides[target] * place // places for place, target in enumerate(self._queue)}

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """Pick an endpoint; see `Policy.pick`. An endpoint that is not usable loses its turn."""
        queue = self._queue
        for _ in range(len(queue)):
            target = queue[0]
            queue.rotate(-1)
            if usable(target):
                return target
        return self._pick_by_weight(usable) if self._turns else None

    def _pick_by_weight(self, usable: Callable[[Target], bool]) -> Target | None:
        turns, passed = self._turns, list[tuple[int, Target]]()
        picked: Target | None = None
        while turns and picked is None:
            at, target = heappop(turns)
            passed.append((at + self._strides[target], target))
            if usable(target):
                picked = target
        for turn in passed:
            heappush(turns, turn)
        return picked

    def copy(self) -> RoundRobin:
        """See `Policy.copy`."""
        copy = RoundRobin(self._rng)
        copy._strides, copy._queue, copy._turns = self._strides, self._queue.copy(), self._turns.copy()
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints in the order of their turns."""
        return tuple(self._queue) or tuple(target for _, target in sorted(self._turns))
