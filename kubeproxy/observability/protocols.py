"""Protocols for the parts of other rooms that observability reads, without importing those rooms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kubeproxy.dataplane.interface import EjectedEndpoint, WorkerStatus
from kubeproxy.model import Address, Frontend, FrontendName, ServiceName, Target
from kubeproxy.model import Protocol as Transport
from kubeproxy.model.conntrack import ConntrackRoom
from kubeproxy.observability.health import Reason
from kubeproxy.runtime.histogram import Histogram


class FrontendView(Protocol):
    """A wanted frontend."""

    @property
    def frontend(self) -> Frontend:
        """Its addresses and endpoints."""

    @property
    def proxy_port(self) -> int | None:
        """Its listening port; None: it does not listen yet."""

    @property
    def data_path(self) -> str:
        """The way of its new connections: ``userspace``, ``kernel``, ``refused``."""

    @property
    def data_path_reason(self) -> str:
        """Why they do not take the kernel path; otherwise empty."""

    @property
    def targets(self) -> Sequence[Target]:
        """The endpoints to which the kernel leads them; empty on the userspace path."""


class ProxierView(Protocol):
    """The proxier's state at one moment; times are seconds of its clock."""

    @property
    def frontends(self) -> Sequence[FrontendView]:
        """All wanted frontends."""

    @property
    def problems(self) -> Mapping[ServiceName, Sequence[str]]:
        """Services that are not served, or only in part, and why."""

    @property
    def owners(self) -> Mapping[ServiceName, str]:
        """The source of each Service."""

    @property
    def service_health(self) -> Mapping[ServiceName, tuple[int, int]]:
        """Health check node ports, and the number of ready endpoints of the Service on this node."""

    @property
    def sources(self) -> Mapping[str, bool]:
        """Whether the first list of each source is complete."""

    @property
    def netfilter(self) -> str:
        """The packet filter in use."""

    @property
    def failing(self) -> str | None:
        """Why the last sync failed; None: it did not."""

    @property
    def failures(self) -> int:
        """Failed netfilter transactions in a row."""

    @property
    def pending_since(self) -> float | None:
        """When the oldest pending change arrived; None: no change is pending."""

    @property
    def programmed_at(self) -> float | None:
        """When the last netfilter transaction succeeded; None: never."""

    @property
    def service_changes_pending(self) -> int:
        """Services not in effect yet."""

    @property
    def service_changes_total(self) -> int:
        """Changes of Services received."""

    @property
    def endpoint_changes_pending(self) -> int:
        """Services with endpoints not in effect yet."""

    @property
    def endpoint_changes_total(self) -> int:
        """Changes of endpoints received."""


class WatchView(Protocol):
    """The watch of one resource. Times are Unix seconds; None: never."""

    @property
    def resource(self) -> str:
        """``services``, ``endpointslices``."""

    @property
    def behind_s(self) -> float:
        """Seconds for which changes may be missing; 0 while a watch works."""

    @property
    def last_event(self) -> float | None:
        """When the server last sent anything."""

    @property
    def lists(self) -> int:
        """Full lists."""

    @property
    def watches(self) -> int:
        """Started watches."""

    @property
    def events(self) -> int:
        """Received events."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Failures by cause; causes are a fixed set of words."""

    @property
    def faulty(self) -> int:
        """Objects with a part that cannot be served."""

    @property
    def left_out(self) -> int:
        """Objects that are not served because of the memory limit."""

    @property
    def kept_bytes(self) -> int:
        """Size of all kept objects, in bytes of JSON."""


class ManifestProblemView(Protocol):
    """A fault in a manifest; `str` gives place and fault."""

    @property
    def skipped(self) -> bool:
        """Whether it is only an object of a kind that is not read."""

    @property
    def warning(self) -> bool:
        """Whether it is only a probable mistake."""


class ManifestsView(Protocol):
    """The state of the manifests."""

    @property
    def loaded(self) -> bool:
        """Whether all manifests have been read once."""

    @property
    def problems(self) -> Sequence[ManifestProblemView]:
        """The faults of all manifests."""

    @property
    def last_change(self) -> float:
        """When a manifest last changed, in Unix seconds; 0: never."""


@dataclass(frozen=True, slots=True)
class ConfigurationState:
    """The configuration in force, compared with the file on disk at the last reload. Times are Unix seconds."""

    file: str
    """Empty: flags alone."""
    loaded_at: float
    """When the configuration in force was read."""
    faults: tuple[str, ...] = ()
    """Why the last reload was refused; empty: it was not."""
    refused_at: float | None = None
    """When the first of the reloads since then was refused."""
    needs_restart: tuple[str, ...] = ()
    """The fields that have changed in the file, and take effect at a restart only."""


class RequestsView(Protocol):
    """Requests to an API server."""

    @property
    def host(self) -> str:
        """Host and port."""

    @property
    def answers(self) -> Mapping[tuple[str, str], int]:
        """Answers by method and code."""

    @property
    def latency(self) -> Mapping[str, Histogram]:
        """Latencies by method."""


class EventsView(Protocol):
    """Kubernetes Events."""

    @property
    def sent(self) -> int:
        """Events that the server accepted."""

    @property
    def dropped(self) -> int:
        """Events that were not sent or not accepted."""


class DrainView(Protocol):
    """What rollouts have asked of this node."""

    @property
    def draining(self) -> Collection[Address]:
        """The endpoints that drain now."""

    @property
    def open(self) -> Mapping[Address, int]:
        """Open connections to them, and to others that rollouts ask for; without zeros."""


class EjectionView(Protocol):
    """An endpoint to which the kernel leads no new connections. Times are seconds of the proxier's clock."""

    @property
    def since(self) -> float:
        """When it was ejected."""

    @property
    def reason(self) -> str:
        """``refused``, ``unreachable``, ``silent``, ``timeout``."""

    @property
    def noticed_by(self) -> str:
        """``rescue``: a client's packet on the kernel path; ``worker``: a dial on the userspace path."""

    @property
    def until(self) -> float:
        """When it is dialed."""

    @property
    def failures(self) -> int:
        """Failures in a row."""


class RescueCountsView(Protocol):
    """What the rescue process has done."""

    @property
    def copied(self) -> int:
        """Copies of first packets of clients."""

    @property
    def refused(self) -> int:
        """Reports of refused connections."""

    @property
    def unreachable(self) -> int:
        """Reports of ICMP errors."""

    @property
    def resent(self) -> int:
        """Packets sent again."""

    @property
    def given_up(self) -> int:
        """Packets that were sent again as often as allowed."""

    @property
    def unknown(self) -> int:
        """Reports without the copy that is to be sent again."""

    @property
    def unsent(self) -> int:
        """Packets that the kernel did not send."""

    @property
    def overflows(self) -> int:
        """Times that the kernel had no room for a report or copy."""

    @property
    def held(self) -> int:
        """Copies kept now."""


@dataclass(frozen=True, slots=True)
class RescueState:
    """The rescue of failed connections of the kernel path. Counts are sums since the start of this process."""

    working: bool
    """Whether failed connections are rescued now."""
    changed_at: float
    """Since when, in seconds of the proxier's clock."""
    problem: str
    """Why they are not; empty: they are, or it is about to start."""
    restarts: int
    """How often its process was started again."""
    counts: RescueCountsView
    ejections: Mapping[tuple[str, str], int]
    """Ejections so far by reason, and by which part has noticed the failure."""
    ejected: Mapping[tuple[Transport, Target], EjectionView]
    """The endpoints to which the kernel leads no new connections now."""


@dataclass(frozen=True, slots=True)
class KernelFlowsState:
    """The connections of the kernel path in connection tracking. Counts are sums since the start of this process."""

    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading failed; empty: it did not."""
    reading_s: float
    """How long the last reading took; 0: there was none."""
    ends_followed: bool
    """Whether the kernel reports each end, as for the access log."""
    ends: int
    """Ends of connections of ours reported."""
    overflows: int
    """Times that the kernel had no room for ends."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of the control plane at one moment."""

    proxier: ProxierView
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
    """None: no manifests are configured."""
    requests: RequestsView | None = None
    """None: no API server is configured."""
    events: EventsView | None = None
    drain: DrainView | None = None
    data_path: str = "userspace"
    """The setting kubeproxy.dataPath."""
    rescue: RescueState | None = None
    """None: the kernel path is not asked for."""
    kernel_flows: KernelFlowsState | None = None
    """None: no rule of this process has led a connection by the kernel path."""
    conntrack: ConntrackRoom | None = None
    """None: the kernel does not track connections, or does not report them."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """Sources for which the state of an earlier run stands, and since when that may be wrong, in Unix seconds."""
    reasons: Mapping[Reason, str] = field(default_factory=dict)
    """Why the daemon is not wholly well (see `Health.reasons`)."""


class Serving(Protocol):
    """The state of the data plane (`kubeproxy.dataplane.interface.DataPlane`)."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """The status of each worker."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """The ejected endpoints."""

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""

    @property
    def problem(self) -> str | None:
        """Why the data plane is degraded; None: it is not."""
