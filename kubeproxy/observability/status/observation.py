"""The state of the daemon at one moment, from which the status is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint, WorkerStatus
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model import Address, Endpoint, FrontendName, Target
from kubeproxy.model.manifests import ManifestState
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.observability.health import Health
from kubeproxy.observability.picture import ConfigurationState, KernelFlowsState

Candidates = Callable[[FrontendName], Mapping[Target, Endpoint]]
"""A function that returns all endpoints of a frontend's service port, whether or not they are selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The parts of the daemon at one moment."""

    now: float
    """The time of the proxier's clock, in seconds."""
    wall: float
    """The Unix time in seconds."""
    node: str
    pid: int
    began: float
    """The Unix time in seconds at which the process started."""
    health: Health
    proxier: Snapshot
    counters: Mapping[FrontendName, Counters]
    worker_status: Sequence[WorkerStatus]
    ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]
    restarts: int
    watches: Sequence[ReflectorState] = ()
    manifests: ManifestState | None = None
    configuration: ConfigurationState | None = None
    why_not_served: Callable[[str, str], str] = lambda namespace, name: ""
    """A function that takes a namespace and a name. It returns why this proxy does not serve that Service although a
    source has it, or an empty text if the reason is unknown. An empty namespace matches any."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """The sources that are replaced by the state of an earlier run. For each, the Unix time since which that state may
    be out of date."""
    open_by_endpoint: Mapping[FrontendName, Mapping[Target, int]] = field(default_factory=dict)
    """The number of open connections and sessions through workers, by endpoint."""
    open_by_kernel: Callable[[FrontendName], Mapping[Target, int]] = lambda name: {}
    """A function that returns the number of open connections on the kernel path of a frontend, by endpoint."""
    open_to: Mapping[Address, int] = field(default_factory=dict)
    """The number of open connections to draining endpoints, by address."""
    data_path: str = "userspace"
    """The setting kubeproxy.dataPath."""
    rescue: RescueState | None = None
    """The state of the rescue, or None if the kernel path is not configured."""
    kernel_flows: KernelFlowsState | None = None
    """The state of the kernel path's connections, or None if no rule of this process has used the kernel path yet."""
