"""When a node writes its drain report: rarely, spread over nodes, and soon where a rollout waits for it. Pure.

Times are of any monotonic clock. docs/rollouts.md has the numbers of writes for 5,000 nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from kubeproxy.model.drain_report import NodeReport, ServiceReport

HEARTBEAT_S: Final = 60.0
"""The longest time between two writes: with jitter a fifth of the kubelets' writes of Leases, which are 10 s apart."""
LEASE_S: Final = 150
"""How long a report counts as one of a live node: two heartbeats, one of them late, and some skew of clocks."""
PAUSE_S: Final = 0.2
"""The shortest time between two writes."""
COUNTS_S: Final = 5.0
"""The shortest time between two writes of which the second has only other counts of connections."""
RETRY_FIRST_S, RETRY_LIMIT_S = 1.0, 30.0


class ReportSchedule:
    """The times of one node's writes. `random` returns numbers from 0 to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._written: NodeReport | None = None
        self._written_at = -math.inf
        self._beat_at = -math.inf
        self._news: NodeReport | None = None
        """The report with news, due at `_news_at`."""
        self._news_at = math.inf
        self._failures = 0
        self._retry_at = -math.inf

    def due(self, report: NodeReport, spread_s: float, now: float) -> float:
        """When to write this report. `spread_s`: the longest that any request grants."""
        if self._written is None:
            return self._retry_at
        if is_news(self._written, report):
            if self._news_at == math.inf:
                self._news_at = max(now + spread_s * self._random(), self._written_at + PAUSE_S)
            news_at = self._news_at
        else:
            self._news_at = news_at = math.inf
        if report != self._written:
            news_at = min(news_at, self._written_at + max(COUNTS_S, COUNTS_S * spread_s))
        return max(self._retry_at, min(news_at, self._beat_at))

    def written(self, report: NodeReport, now: float) -> None:
        """The API server has taken a report."""
        self._written, self._written_at = report, now
        self._beat_at = now + HEARTBEAT_S * (0.8 + 0.2 * self._random())
        self._news_at = math.inf
        self._failures, self._retry_at = 0, -math.inf

    def failed(self, now: float) -> None:
        """The API server has not taken it: try again later, and later each time."""
        limit_s = min(RETRY_LIMIT_S, RETRY_FIRST_S * 2**self._failures)
        self._failures += 1
        self._retry_at = now + limit_s * (0.5 + 0.5 * self._random())


def is_news(before: NodeReport, now: NodeReport) -> bool:
    """Whether a rollout may wait for what is new: everything but other numbers of open connections.

    A Service without requests any more is no news."""
    return any(_is_news(before.services.get(name), report) for name, report in now.services.items())


def _is_news(before: ServiceReport | None, now: ServiceReport) -> bool:
    if before is None:
        return True
    return (before.generation, before.unused, before.kept) != (
        now.generation,
        now.unused,
        now.kept,
    ) or before.open.keys() != now.open.keys()
