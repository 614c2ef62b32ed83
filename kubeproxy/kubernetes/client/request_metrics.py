"""Counts requests to the API server, as client-go does."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

LATENCY_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds of client-go's request latency (component-base, metrics/prometheus/restclient)."""
NO_ANSWER: Final = "<error>"
"""client-go's code of a request without an answer."""


@dataclass(slots=True)
class Latency:
    """A histogram of request times: counts per bucket of `LATENCY_BUCKETS_S` and one for the rest, not cumulative."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    seconds: float = 0.0


@dataclass(slots=True)
class Requests:
    """The requests to one server; times are from sending to the head of the answer."""

    host: str
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method and code."""
    latency: dict[str, Latency] = field(default_factory=dict)
    """By method."""

    def answered(self, method: str, status: int | None, seconds: float) -> None:
        """Count a request; `status` None: no answer."""
        self.answers[method, NO_ANSWER if status is None else str(status)] += 1
        latency = self.latency.setdefault(method, Latency())
        latency.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        latency.seconds += seconds
