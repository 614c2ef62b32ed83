"""Counts requests to the API server, for client-go's metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from kubeproxy.runtime.histogram import Histogram

LATENCY_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The upper bounds of client-go's request latency (component-base, metrics/prometheus/restclient)."""
NO_ANSWER: Final = "<error>"
"""The code in the metric for a request without an answer, as in client-go."""


@dataclass(slots=True)
class Requests:
    """The metrics of the requests to one server. Latencies are measured until the headers of the answer."""

    host: str
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of answers by method and code."""
    latency: dict[str, Histogram] = field(default_factory=dict)
    """The latency histogram of each method."""

    def answered(self, method: str, status: int | None, seconds: float) -> None:
        """Count one request with its latency in seconds. `status` is the HTTP status, or None if there was no
        answer."""
        self.answers[method, NO_ANSWER if status is None else str(status)] += 1
        self.latency.setdefault(method, Histogram(LATENCY_BUCKETS_S)).add(seconds)
