"""Delays between tries of an operation that fails. There is no clock and no sleep in this module."""

from __future__ import annotations

from random import Random


class DoublingBackoff:
    """Delays that double with each failure in a row, from `first_s` to `limit_s`.

    They are deterministic, for a client that has a resource of its own, so that no other client retries in step with
    it.
    """

    def __init__(self, *, first_s: float, limit_s: float) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._next_s = first_s

    def next(self) -> float:
        """Return the delay before the next try, in seconds."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._limit_s)
        return delay_s

    def reset(self) -> None:
        """Start from the first delay again, after a success."""
        self._next_s = self._first_s


class DecorrelatedJitter:
    """Random delays, each between `base_s` and three times the previous one, or `cap_s`.

    They are for clients of one server: a thousand nodes that lost it at the same instant drift apart from the first
    delay on. The range of the draw is bounded, not its result, because otherwise most results would be the cap itself,
    and the nodes would meet there again. The cap bounds how long a node stays behind after the server's return.
    """

    def __init__(self, *, base_s: float, cap_s: float, random: Random) -> None:
        self._first_s = base_s
        self.range_s = base_s, cap_s
        """The range may be changed between two draws."""
        self._random = random
        self._last_s = base_s

    def next(self) -> float:
        """Return the delay before the next try, in seconds."""
        least_s, most_s = self.range_s
        self._last_s = self._random.uniform(least_s, max(least_s, min(most_s, 3 * self._last_s)))
        return self._last_s

    def reset(self) -> None:
        """Start from the base again, after a success."""
        self._last_s = self._first_s
