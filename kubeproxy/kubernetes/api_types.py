"""Kubernetes objects as msgspec structs, with only the fields in use.

Any field may be absent or null, as with real servers. Unknown fields are skipped and cost nothing. Decoding checks
types; `kubeproxy.sources.translate` checks values. Labels and annotations are structs of the few keys in use, because a
Service's annotations may carry a copy of the whole object.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for unusable bytes: not JSON, of other types, not UTF-8, or nested deeper than the
interpreter's stack allows."""


SOURCE = "kubernetes"
"""The label of API server data in logs and metrics."""


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The base of all wire objects. The garbage collector does not track them.

    Decoded values hold no cycles, and a hundred thousand of them would make every full collection a pause.
    """


class Labels(Wire, frozen=True):
    """The labels that name the Service, the proxy and the zone."""

    service_name: str | None = msgspec.field(name="kubernetes.io/service-name", default=None)
    service_proxy_name: str | None = msgspec.field(name="service.kubernetes.io/service-proxy-name", default=None)
    headless: str | None = msgspec.field(name="service.kubernetes.io/headless", default=None)
    zone: str | None = msgspec.field(name="topology.kubernetes.io/zone", default=None)


class Annotations(Wire, frozen=True):
    """The annotations in use."""

    source_ranges: str | None = msgspec.field(
        name="service.beta.kubernetes.io/load-balancer-source-ranges", default=None
    )
    trigger_time: str | None = msgspec.field(name="endpoints.kubernetes.io/last-change-trigger-time", default=None)
    drain_requests: str | None = msgspec.field(name="kubeproxy/drain-requests", default=None)
    scheduler: str | None = msgspec.field(name="kubeproxy/scheduler", default=None)
    slow_start: str | None = msgspec.field(name="kubeproxy/slow-start", default=None)
    weight: str | None = msgspec.field(name="kubeproxy/weight", default=None)


class ObjectMeta(Wire, frozen=True):
    """Identity and version of an object."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Labels | None = None
    annotations: Annotations | None = None


# Service, v1


class ServicePort(Wire, frozen=True):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    node_port: int | None = None


class ClientIPConfig(Wire, frozen=True):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Wire, frozen=True):
    client_ip: ClientIPConfig | None = msgspec.field(name="clientIP", default=None)


class ServiceSpec(Wire, frozen=True):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    cluster_ips: list[str | None] | None = msgspec.field(name="clusterIPs", default=None)
    ports: list[ServicePort | None] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    external_ips: list[str | None] | None = msgspec.field(name="externalIPs", default=None)
    load_balancer_source_ranges: list[str | None] | None = None
    health_check_node_port: int | None = None
    traffic_distribution: str | None = None


class LoadBalancerIngress(Wire, frozen=True):
    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(Wire, frozen=True):
    ingress: list[LoadBalancerIngress | None] | None = None


class ServiceStatus(Wire, frozen=True):
    load_balancer: LoadBalancerStatus | None = None


class Service(Wire, frozen=True):
    """A v1 Service."""

    metadata: ObjectMeta | None = None
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


# EndpointSlice, discovery.k8s.io/v1


class EndpointConditions(Wire, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(Wire, frozen=True):
    name: str | None = None


class EndpointHints(Wire, frozen=True):
    for_zones: list[Hint | None] | None = None
    for_nodes: list[Hint | None] | None = None


class TargetRef(Wire, frozen=True):
    """The object behind an endpoint of a slice, or of the legacy Endpoints. Usually it is a pod."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None


def pod_of(target: TargetRef | None) -> str:
    """Return the UID of the pod behind an endpoint, or its name if no UID is given. The text is empty if no pod is
    named."""
    return (target.uid or target.name or "") if target is not None and target.kind == "Pod" else ""


class Endpoint(Wire, frozen=True):
    addresses: list[str | None] | None = None
    conditions: EndpointConditions | None = None
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Wire, frozen=True):
    """A port of a slice, and of a subset of the legacy Endpoints."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(Wire, frozen=True):
    """A discovery.k8s.io/v1 EndpointSlice."""

    metadata: ObjectMeta | None = None
    address_type: str | None = None
    endpoints: list[Endpoint | None] | None = None
    ports: list[EndpointPort | None] | None = None


# Endpoints, v1


class EndpointAddress(Wire, frozen=True):
    ip: str | None = None
    node_name: str | None = None
    target_ref: TargetRef | None = None


class EndpointSubset(Wire, frozen=True):
    addresses: list[EndpointAddress | None] | None = None
    not_ready_addresses: list[EndpointAddress | None] | None = None
    ports: list[EndpointPort | None] | None = None


class Endpoints(Wire, frozen=True):
    """A v1 Endpoints object."""

    metadata: ObjectMeta | None = None
    subsets: list[EndpointSubset | None] | None = None


# Node, v1


class Taint(Wire, frozen=True):
    key: str | None = None


class NodeSpec(Wire, frozen=True):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    pod_cidrs: list[str | None] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[Taint | None] | None = None


class NodeAddress(Wire, frozen=True):
    type: str | None = None
    address: str | None = None


class NodeStatus(Wire, frozen=True):
    addresses: list[NodeAddress | None] | None = None


class Node(Wire, frozen=True):
    """A v1 Node."""

    metadata: ObjectMeta | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


# Envelopes of lists, watches and errors


class ListMeta(Wire, frozen=True):
    """A list's version, and the token of its next page."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class ObjectList(Wire, Generic[T], frozen=True):
    """One page of a list; ``ObjectList[msgspec.Raw]`` leaves the items undecoded."""

    kind: str | None = None
    metadata: ListMeta | None = None
    items: list[T] | None = None


class WatchEvent(Wire, frozen=True):
    """One line of a watch. The object stays undecoded, because its type depends on the type of the event."""

    type: str
    object: msgspec.Raw


class Hollow(Wire, frozen=True):
    """Identity and version of any object, for bookmarks and deletions."""

    kind: str | None = None
    metadata: ObjectMeta | None = None


class StatusCause(Wire, frozen=True):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(Wire, frozen=True):
    name: str | None = None
    kind: str | None = None
    causes: list[StatusCause | None] | None = None
    retry_after_seconds: int | None = None


class Status(Wire, frozen=True):
    """A v1 Status: the body of an error answer, and the object of an ERROR event."""

    kind: str | None = None
    metadata: ListMeta | None = None
    """It carries a new continue token after the old one has expired."""
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None
