"""Least connections by slots that are weighted anew every second, beside exact counts: ``python -m
tests.tools.bench.weighted_slots``. It simulates the loads of `tests.tools.bench.schedulers`.

The slots are as good as they can be: every second each endpoint gets the share of the next second's connections that
would make all equally full, if as many come as in the last second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from statistics import mean

ENDPOINTS = 4
WEIGHED_EVERY_S, LOOKS_EVERY_S = 1.0, 0.1
CLIENTS, ON_THE_WAY_S, ANSWERED_S = 64, 0.001, (0.1, 0.001, 0.001, 0.001)
PER_S, LONGEST_S = 500, 60.0


class Exact:
    """Picks an endpoint with the fewest open connections."""

    def __init__(self, rng: random.Random) -> None:
        self.open = [0] * ENDPOINTS
        self.rng = rng

    def pick(self, now: float) -> int:
        """Pick an endpoint."""
        least = min(self.open)
        return self.rng.choice([number for number, count in enumerate(self.open) if count == least])


class Slots(Exact):
    """Draws an endpoint by weights that follow what was open at the last second."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._weights = [1.0] * ENDPOINTS
        self._weighed_at, self._came = 0.0, 0

    def pick(self, now: float) -> int:
        """Pick an endpoint."""
        if now >= self._weighed_at + WEIGHED_EVERY_S:
            counts = sorted(self.open)
            level = min((self._came + sum(counts[:size])) / size for size in range(1, ENDPOINTS + 1))
            self._weights = [max(0.0, level - count) for count in self.open]
            self._weighed_at, self._came = now, 0
        self._came += 1
        return self.rng.choices(range(ENDPOINTS), self._weights)[0]


def uneven(policy: Exact) -> tuple[float, float, float]:
    """Closed loops of clients, for 20 s: what is open to the fullest and to the emptiest endpoint, and answers per
    second."""
    return _simulated(policy, [ON_THE_WAY_S] * CLIENTS, lambda endpoint: ANSWERED_S[endpoint], again=True, seconds=20.0)


def lasting(policy: Exact) -> tuple[float, float, float]:
    """Connections that last from 1 to 60 s: the same."""
    seconds = 2 * LONGEST_S
    begins = [number / PER_S for number in range(int(PER_S * seconds))]
    return _simulated(policy, begins, lambda _: policy.rng.uniform(1.0, LONGEST_S), again=False, seconds=seconds)


def _simulated(
    policy: Exact, begins: list[float], lasts_s: Callable[[int], float], *, again: bool, seconds: float
) -> tuple[float, float, float]:
    events: list[tuple[float, int, int | None]] = []
    for number, at in enumerate(begins):
        heappush(events, (at, number, None))
    ticket, ended, looks_at = len(begins), 0, seconds / 2
    most, least = list[int](), list[int]()
    while events and events[0][0] < seconds:
        now, _, endpoint = heappop(events)
        ticket += 1
        if now >= looks_at:
            most.append(max(policy.open))
            least.append(min(policy.open))
            looks_at += LOOKS_EVERY_S
        if endpoint is None:
            endpoint = policy.pick(now)
            policy.open[endpoint] += 1
            heappush(events, (now + lasts_s(endpoint), ticket, endpoint))
        else:
            policy.open[endpoint] -= 1
            ended += 1
            if again:
                heappush(events, (now + ON_THE_WAY_S, ticket, None))
    return mean(most), mean(least), ended / seconds


def main(say: Callable[[str], None] = print) -> None:
    """Print a table."""
    say("| | open, fullest endpoint | open, emptiest endpoint | connections per second |\n|---|---|---|---|")
    for load in (uneven, lasting):
        for policy in (Exact, Slots):
            most, least, per_s = load(policy(random.Random(1)))
            say(f"| {load.__name__}, {policy.__name__.lower()} | {most:,.1f} | {least:,.1f} | {per_s:,.0f} |")


if __name__ == "__main__":
    main()
