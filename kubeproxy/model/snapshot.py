"""The proxier's state at one moment, for the status, metrics and health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model.frontend import Frontend, Target
from kubeproxy.model.service import ServiceName


class DataPath(StrEnum):
    """The path that the bytes of new connections take."""

    USERSPACE = "userspace"
    """Bytes go through a worker of this proxy."""
    KERNEL = "kernel"
    """Bytes go from the client to the endpoint, translated by netfilter."""
    REFUSED = "refused"
    """New connections are refused, because the kernel cannot lead them and no worker may serve them."""


@dataclass(frozen=True, slots=True)
class FrontendState:
    """A wanted frontend and its proxy port."""

    frontend: Frontend
    proxy_port: int | None
    """The port at which the frontend listens, or None while it does not listen yet."""
    data_path: DataPath = DataPath.USERSPACE
    data_path_reason: str = ""
    """Why new connections do not take the kernel path. It is empty if they do."""
    targets: tuple[Target, ...] = ()
    """The endpoints to which the kernel leads new connections. It is empty on the userspace path."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A few numbers that cost the same however many Services there are."""

    services: int
    waiting: int
    """The number of Services that changed and have not been processed yet."""
    listeners: int
    """The number of frontends that listen."""
    services_degraded: int
    """The number of Services that are not served, or only in part."""
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be brought up to date, or None if they can."""
    listing: tuple[str, ...]
    """The sources that have not listed their objects yet."""


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The slots of the kernel path: one for each endpoint of each address of a Service."""

    used: int = 0
    limit: int = 0
    refused: int = 0
    """The number of frontends that got no slots, because their namespace already has its share."""

    @property
    def complaint(self) -> str | None:
        """Return the problem in words, with its remedy, or None if every frontend has its slots."""
        if not self.refused:
            return None
        return (
            f"frontends without slots of the kernel path: {self.refused}; {self.used} of {self.limit} slots are in use,"
            " and a namespace may have half of what the others leave; raise kubeproxy.slotMemoryMib"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Wanted frontends with their listeners, and problems. Times are seconds of the proxier's clock."""

    ready: bool
    """Whether enough sources are complete to serve."""
    frontends: Sequence[FrontendState]
    problems: Mapping[ServiceName, Sequence[str]]
    service_health: Mapping[ServiceName, tuple[int, int]]
    """The health check node port of each Service that has one, and its number of ready endpoints on this node."""
    sources: Mapping[str, bool]
    """Every source, and whether it has listed all of its objects."""
    owners: Mapping[ServiceName, str]
    """The source from which each Service is served."""
    netfilter: str
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be brought up to date, or None if they can."""
    failures: int
    """How many netfilter transactions have failed in a row."""
    pending_since: float | None
    """When the oldest change that is not in effect yet was first seen, or None if everything is in effect."""
    programmed_at: float | None
    """When the last netfilter transaction succeeded, or None before the first one."""
    service_changes_pending: int
    service_changes_total: int
    endpoint_changes_pending: int
    endpoint_changes_total: int
    slots: SlotUse = SlotUse()
