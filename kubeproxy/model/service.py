"""A Service as a node needs it: addresses, ports and policies, nothing else of the object."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model.address import Address
from kubeproxy.model.balancing import Scheduler
from kubeproxy.model.drain_request import DrainRequests


class Protocol(StrEnum):
    """The transport of a service port, spelled as in the API. SCTP is only named, and not served."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


class TrafficPolicy(StrEnum):
    """Which endpoints may answer: any in the cluster, or only those of this node."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class ServiceName(NamedTuple):
    """A Service's identity."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServicePortName(NamedTuple):
    """A service port's identity. Port names are unique within a Service. If the Service has only one port, the
    name may be empty."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}:{self.port}" if self.port else f"{self.namespace}/{self.name}"

    @property
    def service(self) -> ServiceName:
        """Return the Service that this port belongs to."""
        return ServiceName(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ServicePort:
    """One port of a Service."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0
    """The node port, or 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Service:
    """A Service that this proxy serves (headless, ExternalName and foreign-proxy Services never become one)."""

    name: ServiceName
    cluster_ips: tuple[Address, ...]
    ports: tuple[ServicePort, ...]
    affinity_timeout_s: int | None = None
    """For how many seconds after its last connection a client stays with its endpoint, or None without affinity."""
    scheduler: Scheduler | None = None
    """The scheduler of this Service, or None if the node's default decides."""
    slow_start_s: int = 0
    """For how many seconds the share of an endpoint that has just become ready grows. With 0 it has its whole share at
    once."""
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    """The ingress addresses of mode VIP. At those of mode Proxy the load balancer itself answers."""
    load_balancer_source_ranges: tuple[str, ...] = ()
    """The canonical CIDRs. It is empty if every client is allowed."""
    health_check_node_port: int = 0
    """The health check node port, or 0 if there is none."""
    created: int = 0
    """The metadata.creationTimestamp in Unix seconds, or 0 if the object has none, as in most manifests."""
    drain: DrainRequests | None = None
    """The requests of rollouts about the Service's endpoints, or None if there are none."""
    remarks: tuple[str, ...] = ()
    """The parts of the object that are ignored although the Service is served, and why."""
