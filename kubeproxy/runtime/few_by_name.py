"""Limits log messages about many similar events: the first events of an interval are logged by name, and the others are
counted."""

from __future__ import annotations


class FewByName:
    """Allows the first `at_most` events of each interval to be logged by name.

    The others are counted, for one message about all of them.
    """

    def __init__(self, *, at_most: int, interval_s: float) -> None:
        self.at_most = at_most
        self.interval_s = interval_s
        self._since = float("-inf")
        self._named = self._others = 0

    def allow(self, now: float) -> bool:
        """Return whether to log this event by name. `now` is in seconds."""
        if now - self._since >= self.interval_s and not self._others:
            self._since, self._named = now, 0
        if self._named < self.at_most:
            self._named += 1
            return True
        self._others += 1
        return False

    def others(self, now: float) -> int:
        """Return how many events were not logged by name in the last interval, or 0 if that interval is not over
        yet."""
        if now - self._since < self.interval_s:
            return 0
        others, self._others = self._others, 0
        return others
