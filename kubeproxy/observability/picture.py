"""The state of the control plane at one moment, from which metrics and the status are made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model import Address
from kubeproxy.model.conntrack import ConntrackRoom
from kubeproxy.model.manifests import ManifestState
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.observability.health import Reason


@dataclass(frozen=True, slots=True)
class ConfigurationState:
    """The configuration in force, compared with the file on disk at the last reload. Times are Unix seconds."""

    file: str
    """Empty if there are flags alone."""
    loaded_at: float
    """When the configuration in force was read."""
    faults: tuple[str, ...] = ()
    """Why the last reload was refused. It is empty if the reload was not refused."""
    refused_at: float | None = None
    """When the first of the reloads refused since then was refused."""
    needs_restart: tuple[str, ...] = ()
    """The fields that have changed in the file, and take effect at a restart only."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Kubernetes Events since the start of this process."""

    sent: int
    """How many Events the API server has accepted."""
    dropped: int
    """Events beyond the rate limit, or refused by the API server."""


@dataclass(frozen=True, slots=True)
class DrainingEndpoints:
    """What rollouts have asked of this node."""

    addresses: Collection[Address]
    """The endpoints that drain now."""
    open: Mapping[Address, int]
    """Open connections to the draining endpoints, and to others that rollouts ask for; without zeros."""


@dataclass(frozen=True, slots=True)
class KernelFlowsState:
    """The connections of the kernel path in connection tracking. Counts are sums since the start of this process."""

    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading failed. It is empty if the reading succeeded."""
    reading_s: float
    """How long the last reading took; 0 before the first."""
    ends_followed: bool
    """Whether the kernel reports the end of each connection, as for the access log."""
    ends: int
    """Reported ends of our connections."""
    overflows: int
    """How often the kernel had no room for ends."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of the control plane at one moment."""

    proxier: Snapshot
    watches: Sequence[ReflectorState] = ()
    manifests: ManifestState | None = None
    """None if no manifests are configured."""
    requests: Requests | None = None
    """The requests to the API server. None if no API server is configured."""
    events: EventCounts | None = None
    """None if no API server is configured."""
    draining: DrainingEndpoints | None = None
    data_path: str = "userspace"
    """The setting kubeproxy.dataPath."""
    rescue: RescueState | None = None
    """None if the kernel path is not asked for."""
    kernel_flows: KernelFlowsState | None = None
    """None until a rule of this process has led a connection by the kernel path."""
    conntrack: ConntrackRoom | None = None
    """None if the kernel does not track connections, or does not report them."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """The sources for which the state of an earlier run is served, and since when that may be wrong, in Unix
    seconds."""
    reasons: Mapping[Reason, str] = field(default_factory=dict)
    """Why the daemon is not wholly well (see `Health.reasons`)."""
