"""Health checks as service level indicators: what every component of Kubernetes serves at ``/metrics/slis``
(component-base, metrics/prometheus/slis), on a page of its own so that it can be scraped more often."""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

Check = Literal["healthz", "livez", "readyz"]

PROXY: Final = "proxy"
"""The check behind the health server's pages."""


class ServiceLevels:
    """How the checks ended, each time that somebody asked."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._latest = Gauge(
            "kubernetes_healthcheck",
            "Whether a health check succeeded when it was last made",
            ("name", "type"),
            registry=self._registry,
        )
        self._all = Counter(
            "kubernetes_healthchecks_total",
            "Health checks made, by how they ended",
            ("name", "type", "status"),
            registry=self._registry,
        )

    def checked(self, check: Check, well: bool, *, name: str = PROXY) -> None:
        """One was made."""
        self._latest.labels(name, check).set(well)
        self._all.labels(name, check, "success" if well else "error").inc()

    def render(self) -> bytes:
        """As Prometheus text."""
        return generate_latest(self._registry)
