"""The proxier's state at one moment, for status, metrics and health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model.frontend import Frontend, Target
from kubeproxy.model.service import ServiceName


class DataPath(StrEnum):
    """The data path of new connections."""

    USERSPACE = "userspace"
    """A worker of this proxy forwards the bytes."""
    KERNEL = "kernel"
    """The kernel forwards the packets, with addresses translated by netfilter."""
    REFUSED = "refused"
    """New connections are refused, because the kernel cannot forward them and workers may not serve them."""


@dataclass(frozen=True, slots=True)
class FrontendState:
    """A frontend, its proxy port, and its data path."""

    frontend: Frontend
    proxy_port: int | None
    """The port on which the frontend's listener listens, or None if there is no listener yet."""
    data_path: DataPath = DataPath.USERSPACE
    data_path_reason: str = ""
    """Why new connections do not use the kernel path, or empty if they do."""
    targets: tuple[Target, ...] = ()
    """The endpoints to which the kernel sends new connections. It is empty on the userspace path."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the state, whose cost does not depend on the number of Services."""

    services: int
    waiting: int
    """The number of changed Services that have not been processed yet."""
    listeners: int
    """The number of frontends with a listener."""
    services_degraded: int
    """The number of Services that are not served, or only partly."""
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be updated, or None if all of them can."""
    listing: tuple[str, ...]
    """The sources that have not delivered their first complete list yet."""


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The use of slots on the kernel path. Each endpoint of each address of a Service needs a slot."""

    used: int = 0
    limit: int = 0
    refused: int = 0
    """The number of frontends without slots, because their namespace already uses its share."""

    @property
    def complaint(self) -> str | None:
        """Return a text about frontends without slots, with the remedy, or None if there are none."""
        if not self.refused:
            return None
        return (
            f"frontends without slots of the kernel path: {self.refused}; {self.used} of {self.limit} slots are in use,"
            " and a namespace may have half of what the others leave; raise kubeproxy.slotMemoryMib"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The frontends, their listeners, and the problems. Times are seconds of the proxier's clock."""

    ready: bool
    """Whether enough sources have delivered a complete list for the proxy to serve."""
    frontends: Sequence[FrontendState]
    problems: Mapping[ServiceName, Sequence[str]]
    service_health: Mapping[ServiceName, tuple[int, int]]
    """The health check node port, and the number of ready endpoints on this node, of each Service that has such a
    port."""
    sources: Mapping[str, bool]
    """Whether each source has delivered a complete list."""
    owners: Mapping[ServiceName, str]
    """The source from which each Service is served."""
    netfilter: str
    failing: str | None
    """Why netfilter, conntrack or the data plane cannot be updated, or None if all of them can."""
    failures: int
    """The number of netfilter transactions that have failed in a row."""
    pending_since: float | None
    """When the oldest change that is not in effect yet was seen, or None if all changes are in effect."""
    programmed_at: float | None
    """When the last netfilter transaction succeeded, or None before the first one."""
    service_changes_pending: int
    service_changes_total: int
    endpoint_changes_pending: int
    endpoint_changes_total: int
    slots: SlotUse = SlotUse()
