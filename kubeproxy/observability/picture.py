"""The state of the control plane at one moment, from which metrics and the status are made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model import Address
from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.model.manifests import ManifestState
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.observability.health import Reason


@dataclass(frozen=True, slots=True)
class ConfigurationState:
    """The configuration in force, compared with the file on disk at the last reload. Times are Unix seconds."""

    file: str
    """The configuration file. It is empty if there are only flags."""
    loaded_at: float
    """The time at which the configuration in force was read."""
    faults: tuple[str, ...] = ()
    """Why the last reload was refused. It is empty if the reload was not refused."""
    refused_at: float | None = None
    """When the first of the reloads refused since then was refused."""
    needs_restart: tuple[str, ...] = ()
    """The fields that have changed in the file and take effect only at a restart."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Kubernetes Events since the start of this process."""

    sent: int
    """How many Events the API server has accepted."""
    dropped: int
    """The number of Events beyond the rate limit, or refused by the API server."""


@dataclass(frozen=True, slots=True)
class DrainingEndpoints:
    """The requests of rollouts to this node."""

    addresses: Collection[Address]
    """The endpoints that drain now."""
    open: Mapping[Address, int]
    """The number of open connections to the draining endpoints, and to others for which rollouts ask, without zeros."""


@dataclass(frozen=True, slots=True)
class KernelFlowsState:
    """The connections of the kernel path in connection tracking. Counts are sums since the start of this process."""

    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading failed. It is empty if the reading succeeded."""
    reading_s: float
    """How many seconds the last reading took. It is 0 before the first reading."""
    ends_followed: bool
    """Whether the kernel reports the end of each connection, as the access log needs."""
    ends: int
    """The number of reported ends of our connections."""
    overflows: int
    """The number of times at which the kernel had no room for ends."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of the control plane at one moment."""

    proxier: Snapshot
    watches: Sequence[ReflectorState] = ()
    manifests: ManifestState | None = None
    """The state of the manifests, or None if no manifests are configured."""
    requests: Requests | None = None
    """The requests to the API server, or None if no API server is configured."""
    events: EventCounts | None = None
    """The counts of Events, or None if no API server is configured."""
    draining: DrainingEndpoints | None = None
    data_path: str = "userspace"
    """The setting kubeproxy.dataPath."""
    rescue: RescueState | None = None
    """The state of the rescue, or None if the kernel path is not configured."""
    kernel_flows: KernelFlowsState | None = None
    """The state of the kernel path's connections, or None until a rule of this process has led one."""
    conntrack: ConntrackRoom | None = None
    """The usage of connection tracking, or None if the kernel does not track connections, or does not report them."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """The sources for which the state of an earlier run is served, each with the time in Unix seconds since which that
    state may be wrong."""
    reasons: Mapping[Reason, str] = field(default_factory=dict)
    """The problems of the daemon (see `Health.reasons`)."""
