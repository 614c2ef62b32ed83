"""A Service with the properties that a proxy needs: addresses, ports and policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model.address import Address
from kubeproxy.model.balancing import Scheduler
from kubeproxy.model.drain_request import DrainRequests


class Protocol(StrEnum):
    """The transport protocol of a service port, as in the API. SCTP is not served."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


class TrafficPolicy(StrEnum):
    """A traffic policy, which says whether all endpoints of the cluster are used, or only those on this node."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class ServiceName(NamedTuple):
    """The identity of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServicePortName(NamedTuple):
    """The identity of a service port. Port names are unique within a Service. If the Service has only one port, the
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
    """A Service that this proxy serves. Headless and ExternalName Services, and Services of other proxies, are not
    represented."""

    name: ServiceName
    cluster_ips: tuple[Address, ...]
    ports: tuple[ServicePort, ...]
    affinity_timeout_s: int | None = None
    """For how many seconds after its last connection a client keeps its endpoint, or None without session affinity."""
    scheduler: Scheduler | None = None
    """The Service's scheduler, or None for the node's default."""
    slow_start_s: int = 0
    """The seconds in which the share of a newly ready endpoint grows to its full size. With 0, it has its full share at
    once."""
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    """The load balancer addresses with ipMode VIP. Traffic to addresses with ipMode Proxy goes to the load balancer."""
    load_balancer_source_ranges: tuple[str, ...] = ()
    """The canonical CIDRs of loadBalancerSourceRanges, or empty if every client is allowed."""
    health_check_node_port: int = 0
    """The health check node port, or 0 if there is none."""
    created: int = 0
    """The metadata.creationTimestamp in Unix seconds, or 0 if it is absent, as in most manifests."""
    drain: DrainRequests | None = None
    """The drain requests of rollouts, or None if there are none."""
    remarks: tuple[str, ...] = ()
    """A text for each part of the object that is ignored although the Service is served."""
