"""How long a ready byte may have had to wait of late: the longest turn of the reactor within the last minute.

Who asks takes nothing away from the next who asks: scrapers, the status and health look at different times, and each is
to see the pause that there was. A scraper that comes at least once a minute misses none.
"""

from __future__ import annotations

from collections import deque

from kubeproxy.dataplane.loop.reactor import Reactor

STEP_S = 10.0
"""How exactly the minute is kept: what is told was at most one of these longer ago."""
STEPS = 6


class Lag:
    """Of one reactor; the only one who takes its longest turn."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._peaks = deque([0.0], maxlen=STEPS + 1)
        """In seconds, the step that runs now last."""
        reactor.after(STEP_S, self._step)

    def longest_s(self) -> float:
        """Seconds."""
        self._peaks[-1] = max(self._peaks[-1], self._reactor.take_longest_turn())
        return max(self._peaks)

    def _step(self) -> None:
        self._reactor.after(STEP_S, self._step)
        self.longest_s()
        self._peaks.append(0.0)
