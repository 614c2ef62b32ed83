"""Exact round robin, by weight. Pure.

Each endpoint has a time of its next turn, and the earliest is picked; its next turn is later by a stride, which is
shorter the greater its weight. So turns are spread evenly, and with equal weights every round has each endpoint once.
When the set of endpoints changes, those that stay keep their times and new ones come a whole stride later, so that the
position is kept and no endpoint gets two turns in a round. The first times are drawn, or the proxies of a thousand
nodes would all begin with the same endpoint."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from kubeproxy.model import Balancing, Target

STRIDE = 1 << 32
"""Of weight 1. An integer, so that nothing is lost by rounding however many turns there are."""


class RoundRobin:
    """A `Policy` that gives each endpoint its turn."""

    __slots__ = ("_rng", "_strides", "_turns")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turns: list[tuple[int, Target]] = []
        """A heap: the next turn of each endpoint."""
        self._strides: dict[Target, int] = {}

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """See `Policy.update`."""
        before = self._strides
        now = self._turns[0][0] if self._turns else 0
        known = {target: at - now for at, target in self._turns}
        self._strides = {target: STRIDE // balancing.weight_of(number) for number, target in enumerate(endpoints)}
        self._turns = []
        for target, stride in self._strides.items():
            if target in known:
                wait = known[target] * stride // before[target]
            else:
                wait = self._rng.randrange(stride) + (stride if known else 0)
            self._turns.append((now + wait, target))
        heapify(self._turns)

    def pick(self, client: str, port: int, usable: Callable[[Target], bool]) -> Target | None:
        """See `Policy.pick`. An endpoint that is not usable loses its turn."""
        turns, passed = self._turns, list[tuple[int, Target]]()
        picked: Target | None = None
        if turns and usable(turns[0][1]):  # nearly always, and much faster
            at, picked = turns[0]
            heapreplace(turns, (at + self._strides[picked], picked))
            return picked
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
        copy._turns, copy._strides = self._turns.copy(), self._strides
        return copy

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, the next one first."""
        return tuple(target for _, target in sorted(self._turns))
