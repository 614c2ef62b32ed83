"""The state of the control plane at one moment. Metrics and the status are made from it."""

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
    """The configuration in force, and how it differs from the file read by the last reload. Times are Unix seconds."""

    file: str
    """The path of the configuration file, or empty if only flags are used."""
    loaded_at: float
    """The time at which the configuration in force was read."""
    faults: tuple[str, ...] = ()
    """Why the last reload was refused. It is empty if the reload succeeded."""
    refused_at: float | None = None
    """When the first of the refused reloads since the last successful one happened, or None if the last reload
    succeeded."""
    needs_restart: tuple[str, ...] = ()
    """The fields that have changed in the file but take effect only at a restart."""


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Counts of Kubernetes Events since the start of this process."""

    sent: int
    """How many Events the API server has accepted."""
    dropped: int
    """How many Events were dropped, by the rate limit or because the API server refused them."""


@dataclass(frozen=True, slots=True)
class DrainingEndpoints:
    """The endpoints that rollouts have asked this node to drain."""

    addresses: Collection[Address]
    """The addresses of the endpoints that are draining."""
    open: Mapping[Address, int]
    """The number of open connections to these endpoints, and to others about which a rollout asks. Addresses with none
    are left out."""


@dataclass(frozen=True, slots=True)
class KernelFlowsState:
    """The connections of the kernel path in connection tracking. Counts are sums since the start of this process."""

    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading of connection tracking failed. It is empty if the reading succeeded."""
    reading_s: float
    """How many seconds the last reading took. It is 0 before the first reading."""
    ends_followed: bool
    """Whether the kernel notifies this process of the end of each connection, which the access log needs."""
    ends: int
    """The number of notified ends of our connections."""
    overflows: int
    """How often notifications were lost because the kernel's buffer was full."""


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
    """The state of the kernel path's connections, or None if no rule of this process has used the kernel path yet."""
    conntrack: ConntrackRoom | None = None
    """The usage of connection tracking, or None if the kernel does not track connections, or does not report them."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """The sources that are replaced by the state of an earlier run. For each, the Unix time since which that state may
    be out of date."""
    reasons: Mapping[Reason, str] = field(default_factory=dict)
    """The problems of the daemon (see `Health.reasons`)."""
