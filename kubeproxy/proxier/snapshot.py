"""The proxier's state as values, for status pages, health and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.model import Frontend, ServiceName


@dataclass(frozen=True, slots=True)
class FrontendStatus:
    """One frontend that is wanted."""

    frontend: Frontend
    proxy_port: int | None
    """Where it listens; None: nowhere yet."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The same in a few numbers, which cost nothing to gather however many Services there are."""

    services: int
    waiting: int
    """Services that changed and have not been looked at yet."""
    listeners: int
    """Frontends that listen."""
    services_degraded: int
    """Services that are not, or not wholly, served."""
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be brought up to date; None: they can."""
    listing: tuple[str, ...]
    """Sources that have not told yet what they have."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is wanted, what stands, and what is wrong. Times are seconds of the proxier's clock."""

    ready: bool
    """Whether enough is known to serve at all."""
    frontends: Sequence[FrontendStatus]
    problems: Mapping[ServiceName, Sequence[str]]
    service_health: Mapping[ServiceName, tuple[int, int]]
    """Health check node ports, and how many ready endpoints of the Service this node has."""
    sources: Mapping[str, bool]
    """Every source, and whether it has listed everything."""
    owners: Mapping[ServiceName, str]
    """Which source each Service is served from."""
    netfilter: str
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be brought up to date; None: they can."""
    failures: int
    """Netfilter transactions that failed in a row."""
    pending_since: float | None
    """When the oldest change that is not in effect was first seen; None: everything is."""
    programmed_at: float | None
    """When the last netfilter transaction succeeded; None: never."""
    service_changes_pending: int
    service_changes_total: int
    endpoint_changes_pending: int
    endpoint_changes_total: int
