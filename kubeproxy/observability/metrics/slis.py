"""Serves health checks as service level indicators, at ``/metrics/slis``.

Every component of Kubernetes has this page (component-base, metrics/prometheus/slis). It is separate from /metrics so
that it can be scraped more often.
"""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

Check = Literal["healthz", "livez", "readyz"]

PROXY: Final = "proxy"
"""The name of the check of the health server's pages."""


class ServiceLevels:
    """Counts health checks by result."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._latest = Gauge(
            "kubernetes_healthcheck",
            "Whether the last health check succeeded",
            ("name", "type"),
            registry=self._registry,
        )
        self._all = Counter(
            "kubernetes_healthchecks_total",
            "Health checks by result",
            ("name", "type", "status"),
            registry=self._registry,
        )

    def checked(self, check: Check, succeeded: bool, *, name: str = PROXY) -> None:
        """Count a health check."""
        self._latest.labels(name, check).set(succeeded)
        self._all.labels(name, check, "success" if succeeded else "error").inc()

    def render(self) -> bytes:
        """Return the indicators as Prometheus text."""
        return generate_latest(self._registry)
