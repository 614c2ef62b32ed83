"""Measures the lag: the longest turn of the reactor within the last minute.

A byte may have waited this long. Reading the lag does not reset it, so scrapers, the status and the health check all
see every pause, although they read at different times. A scraper that reads at least once a minute misses no pause.
"""

from __future__ import annotations

from collections import deque

from kubeproxy.dataplane.loop.reactor import Reactor

STEP_S = 10.0
"""The resolution in seconds. A reported pause may be older than a minute by this much."""
STEPS = 6


class Lag:
    """The lag of one reactor. Nothing else may call the reactor's `take_longest_turn`."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._peaks = deque([0.0], maxlen=STEPS + 1)
        """The longest turn in each interval of `STEP_S`, in seconds; the present interval is last."""
        reactor.after(STEP_S, self._step)

    def longest_s(self) -> float:
        """Return the longest turn within the last minute, in seconds."""
        self._peaks[-1] = max(self._peaks[-1], self._reactor.take_longest_turn())
        return max(self._peaks)

    def _step(self) -> None:
        self._reactor.after(STEP_S, self._step)
        self.longest_s()
        self._peaks.append(0.0)
