"""Kubernetes objects as msgspec structs, with only the fields in use.

Any field may be absent or null. Unknown fields are skipped and use no memory. Decoding checks types;
`kubeproxy.sources.translate` checks values. Labels and annotations are structs of the few keys in use, because a
Service's annotations may contain a copy of the whole object.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for bytes that it cannot decode: not JSON, a wrong type, not UTF-8, or nested
deeper than the interpreter's stack allows."""


SOURCE = "kubernetes"
"""The name of the API server as a source of objects, in logs and metrics."""


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The base class of objects that are decoded from JSON. The garbage collector does not track its instances.

    They contain no reference cycles, and tracking a hundred thousand of them would make every full collection slow.
    """


class Labels(Wire, frozen=True):
    """The labels in use, which name the Service of a slice, the proxy that serves a Service, and the zone of a node."""

    service_name: str | None = msgspec.field(name="kubernetes.io/service-name", default=None)
    service_proxy_name: str | None = msgspec.field(name="service.kubernetes.io/service-proxy-name", default=None)
    headless: str | None = msgspec.field(name="service.kubernetes.io/headless", default=None)
    zone: str | None = msgspec.field(name="topology.kubernetes.io/zone", default=None)


class Annotations(Wire, frozen=True):
    """The annotations in use, of any kind of object."""

    source_ranges: str | None = msgspec.field(
        name="service.beta.kubernetes.io/load-balancer-source-ranges", default=None
    )
    trigger_time: str | None = msgspec.field(name="endpoints.kubernetes.io/last-change-trigger-time", default=None)
    drain_requests: str | None = msgspec.field(name="kubeproxy/drain-requests", default=None)
    scheduler: str | None = msgspec.field(name="kubeproxy/scheduler", default=None)
    slow_start: str | None = msgspec.field(name="kubeproxy/slow-start", default=None)
    weight: str | None = msgspec.field(name="kubeproxy/weight", default=None)


class ObjectMeta(Wire, frozen=True):
    """The metadata in use: identity, version, labels and annotations."""

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
    """The object, usually a pod, that an endpoint of an EndpointSlice or of a legacy Endpoints object refers to."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None


def pod_of(target: TargetRef | None) -> str:
    """Return the UID of an endpoint's pod, or the pod's name if there is no UID, or an empty text if the target is not
    a pod."""
    return (target.uid or target.name or "") if target is not None and target.kind == "Pod" else ""


class Endpoint(Wire, frozen=True):
    addresses: list[str | None] | None = None
    conditions: EndpointConditions | None = None
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Wire, frozen=True):
    """A port of an EndpointSlice, or of a subset of a legacy Endpoints object."""

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
    """The metadata of a list: its resourceVersion, and the continue token of its next page."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class ObjectList(Wire, Generic[T], frozen=True):
    """One page of a list. With ``ObjectList[msgspec.Raw]`` the items stay undecoded."""

    kind: str | None = None
    metadata: ListMeta | None = None
    items: list[T] | None = None


class WatchEvent(Wire, frozen=True):
    """One event of a watch. The object stays undecoded JSON, because its type depends on the type of the event."""

    type: str
    object: msgspec.Raw


class Hollow(Wire, frozen=True):
    """An object of any kind with only its identity and version, for bookmarks and deletions."""

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
    """A v1 Status, which is the body of an error answer and the object of an ERROR event."""

    kind: str | None = None
    metadata: ListMeta | None = None
    """The metadata. If a continue token has expired, it contains a new one."""
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None
