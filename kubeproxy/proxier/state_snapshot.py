"""The proxier's state as values, for status pages, health and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.model import Frontend, ServiceName, Target
from kubeproxy.proxier.data_path import DataPath


@dataclass(frozen=True, slots=True)
class FrontendStatus:
    """A wanted frontend and its proxy port."""

    frontend: Frontend
    proxy_port: int | None
    """The port at which it listens; None: it does not listen yet."""
    data_path: DataPath = DataPath.USERSPACE
    """The way of its new connections."""
    data_path_reason: str = ""
    """Why they do not take the kernel path; otherwise empty."""
    targets: tuple[Target, ...] = ()
    """The endpoints to which the kernel leads them; empty on the userspace path."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A few numbers, at a cost that does not grow with the number of Services."""

    services: int
    waiting: int
    """Services that changed and have not been processed yet."""
    listeners: int
    """Frontends that listen."""
    services_degraded: int
    """Services that are not, or not wholly, served."""
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be brought up to date; None: they can."""
    listing: tuple[str, ...]
    """Sources that have not listed their objects yet."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Wanted frontends, their listeners, and the problems. Times are seconds of the proxier's clock."""

    ready: bool
    """Whether enough sources are complete to serve."""
    frontends: Sequence[FrontendStatus]
    problems: Mapping[ServiceName, Sequence[str]]
    service_health: Mapping[ServiceName, tuple[int, int]]
    """Health check node ports, and the number of ready endpoints of the Service on this node."""
    sources: Mapping[str, bool]
    """Every source, and whether it has listed all its objects."""
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
