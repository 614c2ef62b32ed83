"""The fields of Deployments, ReplicaSets, ReplicationControllers and Pods that their controllers read.

Pod templates stay undecoded JSON (`msgspec.Raw`), because a Deployment's template is copied to its ReplicaSet with all
fields, including fields of newer API versions that are not declared here. Writes are patches of the changed fields, so
the server keeps all other fields.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kubeproxy.kubernetes.api_types import Wire
from kubeproxy.kubernetes.metadata import Metadata, OwnerReference
from kubeproxy.kubernetes.object_client import understood
from kubeproxy.kubernetes.selector import LabelSelector

NO_TEMPLATE: Final = msgspec.Raw(b"{}")
NO_LIMIT: Final = 2_147_483_647
"""The value of progressDeadlineSeconds and revisionHistoryLimit that means no limit (the API's MaxInt32)."""


def _detach(spec: ReplicaSetSpec | ReplicationControllerSpec | DeploymentSpec) -> None:
    """Replace the template, which is a view of the server's answer, by a copy. The view would keep the whole answer,
    perhaps a list of all Deployments, in memory."""
    msgspec.structs.force_setattr(spec, "template", spec.template.copy())


class _CommonMetadata(Wire, frozen=True):
    """The metadata that most kinds share. A subclass adds the annotations that controllers read, and drops all others,
    because a cluster has many of these objects."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[OwnerReference] = msgspec.field(default_factory=list)


# Pod, v1


class PodAnnotations(Wire, frozen=True):
    """The annotations of a pod that controllers read."""

    deletion_cost: str | None = msgspec.field(name="controller.kubernetes.io/pod-deletion-cost", default=None)
    draining: str | None = msgspec.field(name="kubeproxy/draining", default=None)
    """The deletion cost that the pod had before. It is set while the pod drains."""
    use_timeout: str | None = msgspec.field(name="kubeproxy/use-timeout", default=None)
    """The longest time that the pod waits at its readiness gate, as a duration such as ``30s``."""


class PodMetadata(_CommonMetadata, frozen=True):
    """The metadata of a pod."""

    annotations: PodAnnotations = PodAnnotations()


class ReadinessGate(Wire, frozen=True):
    condition_type: str = ""


class PodSpec(Wire, frozen=True):
    node_name: str = ""
    host_network: bool = False
    readiness_gates: tuple[ReadinessGate, ...] = ()


class PodCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class ContainerWaiting(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerTerminated(Wire, frozen=True):
    reason: str = ""
    exit_code: int = 0
    message: str = ""


class ContainerState(Wire, frozen=True):
    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Wire, frozen=True):
    name: str = ""
    restart_count: int = 0
    ready: bool = False
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodIP(Wire, frozen=True):
    ip: str = ""


class PodStatus(Wire, frozen=True):
    phase: str = ""
    pod_ips: list[PodIP] = msgspec.field(name="podIPs", default_factory=list)
    conditions: list[PodCondition] = msgspec.field(default_factory=list)
    container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = msgspec.field(default_factory=list)


class Pod(Wire, frozen=True):
    """A v1 Pod."""

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# Service, v1


class ServiceAnnotations(Wire, frozen=True):
    """The annotation of a Service in which rollouts write their requests to the node proxies."""

    drain_requests: str | None = msgspec.field(name="kubeproxy/drain-requests", default=None)


class ServiceMetadata(_CommonMetadata, frozen=True):
    """The metadata of a Service."""

    annotations: ServiceAnnotations = ServiceAnnotations()


class ServiceSpec(Wire, frozen=True):
    type: str = ""
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: list[str] = msgspec.field(name="clusterIPs", default_factory=list)
    external_ips: list[str] = msgspec.field(name="externalIPs", default_factory=list)
    internal_traffic_policy: str = ""


class Service(Wire, frozen=True):
    """The fields of a v1 Service that rollouts read."""

    metadata: ServiceMetadata = ServiceMetadata()
    spec: ServiceSpec = ServiceSpec()


# Lease, coordination.k8s.io/v1, as node proxies write it


class LeaseAnnotations(Wire, frozen=True):
    """The annotation of a Lease that contains a node's drain report."""

    report: str | None = msgspec.field(name="kubeproxy/drain-report", default=None)


class LeaseMetadata(_CommonMetadata, frozen=True):
    """The metadata of the Lease that a node proxy writes."""

    annotations: LeaseAnnotations = LeaseAnnotations()


class LeaseSpec(Wire, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str | None = None


class Lease(Wire, frozen=True):
    """The Lease in which a node's proxy writes its drain report."""

    metadata: LeaseMetadata = LeaseMetadata()
    spec: LeaseSpec = LeaseSpec()


# Conditions of workloads


class Condition(Wire, frozen=True, omit_defaults=True):
    """A condition in the status of a Deployment, ReplicaSet or ReplicationController."""

    type: str = ""
    status: str = ""
    last_update_time: str | None = None
    """The time of the last update as RFC 3339 text. Only the conditions of Deployments have it."""
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


# ReplicaSet, apps/v1, and ReplicationController, v1


class ReplicaSetSpec(Wire, frozen=True):
    replicas: int = 1
    min_ready_seconds: int = 0
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = NO_TEMPLATE

    def __post_init__(self) -> None:
        _detach(self)


class ReplicaSetStatus(Wire, frozen=True):
    """The status of a ReplicaSet. A ReplicationController's status has the same fields."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: list[Condition] = msgspec.field(default_factory=list)


class ReplicaSet(Wire, frozen=True):
    """An apps/v1 ReplicaSet."""

    metadata: Metadata = Metadata()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ReplicationControllerSpec(Wire, frozen=True):
    """The spec of a ReplicationController. It differs from a ReplicaSet's spec only in the selector, which is a plain
    map."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    template: msgspec.Raw = NO_TEMPLATE

    def __post_init__(self) -> None:
        _detach(self)


class ReplicationController(Wire, frozen=True):
    """A v1 ReplicationController."""

    metadata: Metadata = Metadata()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    def as_replica_set(self) -> ReplicaSet:
        """Return this ReplicationController as a ReplicaSet, because one controller handles both kinds."""
        spec = self.spec
        return ReplicaSet(
            metadata=self.metadata,
            spec=ReplicaSetSpec(
                replicas=spec.replicas,
                min_ready_seconds=spec.min_ready_seconds,
                selector=LabelSelector(match_labels=spec.selector),
                template=spec.template,
            ),
            status=self.status,
        )


# Deployment, apps/v1


class RollingUpdate(Wire, frozen=True):
    max_surge: int | str | None = None
    max_unavailable: int | str | None = None


class Strategy(Wire, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate = RollingUpdate()


class DeploymentSpec(Wire, frozen=True):
    replicas: int = 1
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False
    selector: LabelSelector = LabelSelector()
    strategy: Strategy = Strategy()
    template: msgspec.Raw = NO_TEMPLATE

    def __post_init__(self) -> None:
        _detach(self)


class DeploymentStatus(Wire, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: list[Condition] = msgspec.field(default_factory=list)


class Deployment(Wire, frozen=True):
    """An apps/v1 Deployment."""

    metadata: Metadata = Metadata()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def rolling(self) -> bool:
        """Return whether the strategy is RollingUpdate, which replaces pods step by step."""
        return self.spec.strategy.type == "RollingUpdate"

    @property
    def deadline_s(self) -> int | None:
        """Return the seconds without progress after which a rollout counts as failed, or None if there is no
        deadline."""
        deadline = self.spec.progress_deadline_seconds
        return None if deadline is None or deadline == NO_LIMIT else deadline

    @property
    def history_limit(self) -> int | None:
        """Return the number of old ReplicaSets to keep, or None if all are kept."""
        limit = self.spec.revision_history_limit
        return None if limit is None or limit == NO_LIMIT else limit


def template_of(raw: msgspec.Raw) -> dict[str, Any]:
    """Decode a pod template to plain JSON values, which the caller may change. Raise `GarbageError` if the JSON is
    not a template."""
    with understood("pod template"):
        msgspec.json.decode(raw, type=_TemplateShape)
        found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    return found


class _TemplateMetadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _TemplateShape(msgspec.Struct):
    metadata: _TemplateMetadata | None = None
    spec: dict[str, Any] | None = None
