"""Computes the delays between attempts of an operation that fails. It is pure, and does not sleep."""

from __future__ import annotations

from random import Random


class DoublingBackoff:
    """Delays that double with each failure in a row, from `first_s` to `limit_s`.

    They are not random. Use them for a resource that only this process uses, so that no other clients retry at the same
    time.
    """

    def __init__(self, *, first_s: float, limit_s: float) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._next_s = first_s

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._limit_s)
        return delay_s

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self._next_s = self._first_s


class DecorrelatedJitter:
    """Random delays. Each is between `base_s` and three times the previous delay, but at most `cap_s`.

    Use them for many clients of one server, so that a thousand nodes that lose the server at the same instant do not
    retry at the same time. The upper end of the range is limited to `cap_s` before the random choice. If the result
    were limited instead, most delays would equal `cap_s`.
    """

    def __init__(self, *, base_s: float, cap_s: float, random: Random) -> None:
        self._first_s = base_s
        self.range_s = base_s, cap_s
        """The shortest and the longest delay. They may be changed between two calls of `next`."""
        self._random = random
        self._last_s = base_s

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        least_s, most_s = self.range_s
        self._last_s = self._random.uniform(least_s, max(least_s, min(most_s, 3 * self._last_s)))
        return self._last_s

    def reset(self) -> None:
        """Begin with the base again, after a success."""
        self._last_s = self._first_s
