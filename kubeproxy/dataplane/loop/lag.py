"""The lag: the longest turn of the reactor within the last minute.

A ready byte may have waited that long. Reading the lag does not reset it. Scrapers, the status and the health check
read at different times, and each of them sees every pause. A scraper that reads at least once a minute misses none.
"""

from __future__ import annotations

from collections import deque

from kubeproxy.dataplane.loop.reactor import Reactor

STEP_S = 10.0
"""The resolution of the minute. A reported pause is at most one step older than a minute."""
STEPS = 6


class Lag:
    """The lag of one reactor; the only caller of its `take_longest_turn`."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._peaks = deque([0.0], maxlen=STEPS + 1)
        """The longest turn of each step in seconds, the current step last."""
        reactor.after(STEP_S, self._step)

    def longest_s(self) -> float:
        """Return the longest turn within the last minute, in seconds."""
        self._peaks[-1] = max(self._peaks[-1], self._reactor.take_longest_turn())
        return max(self._peaks)

    def _step(self) -> None:
        self._reactor.after(STEP_S, self._step)
        self.longest_s()
        self._peaks.append(0.0)
