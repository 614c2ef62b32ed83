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
"""A function that returns all endpoints of a frontend's service port, chosen or not."""


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
    """The Unix time in seconds at which the process began."""
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
    """A function that returns why a Service that a source has is not served by this proxy, by namespace and name. An
    empty namespace stands for any. An empty answer means that the reason is not known."""
    stale: Mapping[str, float] = field(default_factory=dict)
    """The sources for which the state of an earlier run is served, each with the Unix time since which that state may
    be wrong."""
    open_by_endpoint: Mapping[FrontendName, Mapping[Target, int]] = field(default_factory=dict)
    """The number of open connections and sessions of the workers to each endpoint."""
    open_by_kernel: Callable[[FrontendName], Mapping[Target, int]] = lambda name: {}
    """Returns the number of open connections that the kernel leads to each endpoint of a frontend."""
    open_to: Mapping[Address, int] = field(default_factory=dict)
    """The number of open connections to endpoints that drain."""
    data_path: str = "userspace"
    """The setting kubeproxy.dataPath."""
    rescue: RescueState | None = None
    """The state of the rescue, or None if the kernel path is not configured."""
    kernel_flows: KernelFlowsState | None = None
    """The state of the kernel path's flows, or None until a rule of this process has led a connection by the kernel
    path."""
