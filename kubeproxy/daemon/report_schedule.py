"""Decides when a node writes its drain report: rarely, spread over time, but soon if a rollout waits for it.

The node itself decides the rate, whatever rollouts request. Times are in seconds of a monotonic clock. docs/rollouts.md
has figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from kubeproxy.model.drain_report import NodeReport, ServiceReport

HEARTBEAT_S: Final = 60.0
"""The longest time between two writes. With jitter, these writes are a fifth as many as those of the kubelets' own
Leases, which come every 10 s."""
COUNTS_S: Final = 5.0
"""The shortest time between two writes if only counts of connections have changed."""
NAMESPACE_S: Final = 5.0
"""The average time between two writes caused by one namespace."""
BURST: Final = 10
"""How many writes a namespace may cause in a burst. An ordinary rollout needs no more."""
RETRY_FIRST_S, RETRY_LIMIT_S = 1.0, 30.0


class ReportSchedule:
    """The times of this node's writes. `random` returns numbers between 0 and 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._written: NodeReport | None = None
        self._written_at = -math.inf
        self._beat_at = -math.inf
        self._news: dict[str, float] = {}
        """The namespaces with changes, each with the time at which its change is due."""
        self._paid_until: dict[str, float] = {}
        """For each namespace, when its next write is allowed, apart from its burst. Each write moves this time on by
        `NAMESPACE_S`."""
        self._failures = 0
        self._retry_at = -math.inf

    def due(self, report: NodeReport, pause_s: float, now: float) -> float:
        """Return when to write this report. `pause_s` is the shortest time between two writes of this node. News waits
        for a random part of that time, so that the nodes do not all write at once."""
        if self._written is None:
            return self._retry_at
        found = news(self._written, report)
        self._news = {each: self._news.get(each, now + pause_s * self._random()) for each in found}
        at = min((max(at, self._allowed_at(each)) for each, at in self._news.items()), default=math.inf)
        if report != self._written:
            at = min(at, self._written_at + COUNTS_S * max(1.0, pause_s))
        return max(self._retry_at, min(max(at, self._written_at + pause_s), self._beat_at))

    def written(self, report: NodeReport, now: float) -> None:
        """Record that the API server accepted a report."""
        self._written, self._written_at = report, now
        self._beat_at = now + HEARTBEAT_S * (0.8 + 0.2 * self._random())
        paid = {each: until for each, until in self._paid_until.items() if until > now}
        self._paid_until = paid | {new: paid.get(new, now) + NAMESPACE_S for new in self._news}
        self._news = {}
        self._failures, self._retry_at = 0, -math.inf

    def failed(self, now: float) -> None:
        """Record that a write failed. The delay before the next attempt grows."""
        limit_s = min(RETRY_LIMIT_S, RETRY_FIRST_S * 2**self._failures)
        self._failures += 1
        self._retry_at = now + limit_s * (0.5 + 0.5 * self._random())

    def _allowed_at(self, namespace: str) -> float:
        return self._paid_until.get(namespace, -math.inf) - (BURST - 1) * NAMESPACE_S


def news(before: NodeReport, now: NodeReport) -> set[str]:
    """Return the namespaces in which a rollout may be waiting for this change. A changed number of open connections
    counts only if an address got its first connection or lost its last. Services whose requests are gone do not
    count."""
    return {name.namespace for name, report in now.services.items() if _is_news(before.services.get(name), report)}


def _is_news(before: ServiceReport | None, now: ServiceReport) -> bool:
    if before is None:
        return True
    return (before.generation, before.unused, before.kept) != (
        now.generation,
        now.unused,
        now.kept,
    ) or before.open.keys() != now.open.keys()
