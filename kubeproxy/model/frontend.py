"""A frontend: the part of a service port that one listener serves. It is the result of the control plane's
decisions."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from itertools import compress
from typing import NamedTuple

from kubeproxy.model.address import Address, Family
from kubeproxy.model.balancing import ROUND_ROBIN, Balancing
from kubeproxy.model.service import Protocol, ServicePortName


class Scope(StrEnum):
    """Which traffic a frontend takes, if policies distinguish clients."""

    CLUSTER = "cluster"
    """Traffic under the Cluster policy. Most service ports have only this frontend."""
    LOCAL = "local"
    """Traffic to cluster IPs under internalTrafficPolicy Local. Only this node's endpoints answer."""
    EXTERNAL = "external"
    """Traffic to node ports, external and load balancer addresses under externalTrafficPolicy Local. Only this node's
    endpoints answer, and they see the client's own address."""


class Claim(IntEnum):
    """The origin of a Service's address. If two Services have the same address, the lower value wins."""

    ALLOCATED = 0
    """Cluster IPs and node ports, each of which an API server gives to only one Service."""
    LOAD_BALANCER = 1
    """Addresses in the Service's status, which a controller writes."""
    EXTERNAL = 2
    """Addresses in spec.externalIPs, where every author of a Service may write any address (CVE-2020-8554)."""


class Verdict(StrEnum):
    """What happens to a client when a frontend has no endpoint."""

    REFUSE = "refuse"
    DROP = "drop"


class FrontendName(NamedTuple):
    """A frontend's identity, and with it the identity of its listener and proxy port."""

    service_port: ServicePortName
    family: Family
    scope: Scope = Scope.CLUSTER

    def __str__(self) -> str:
        scope = "" if self.scope is Scope.CLUSTER else f" ({self.scope})"
        return f"{self.service_port} {self.family}{scope}"


NODE_PORTS = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The address of a Destination that stands for every address of this node that accepts node ports."""


class Destination(NamedTuple):
    """The address that a client uses, before the redirect. A node port has the address `NODE_PORTS`."""

    address: Address
    protocol: Protocol
    port: int


class Origin(IntEnum):
    """The place of the clients that a rule is for. The lower value comes first where a packet matches both."""

    NODE = 0
    """This node itself and its pods."""
    ANYWHERE = 1


class Traffic(NamedTuple):
    """The packets that clients of one origin send to a destination."""

    destination: Destination
    origin: Origin = Origin.ANYWHERE


class Target(NamedTuple):
    """Address and port of an endpoint: what a dial connects to."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Frontend:
    """The destinations that one listener serves, and the endpoints to which it leads."""

    name: FrontendName
    protocol: Protocol
    destinations: Mapping[Destination, Origin]
    """The destinations that the frontend takes, each with the clients from which it takes them. Another frontend may
    have the same destination for clients on this node: under externalTrafficPolicy Local any endpoint in the cluster
    may serve these. Pods count as such clients if the cluster's own addresses are known."""
    source_ranges: frozenset[str] = frozenset()
    """The CIDRs of this family that may reach the `ranged` destinations. It is empty if there is no restriction."""
    ranged: frozenset[Destination] = frozenset()
    """The load balancer addresses among the destinations."""
    claims: Mapping[Destination, Claim] = field(default_factory=dict)
    """The origin of each destination. Destinations that are not named here are `Claim.ALLOCATED`."""
    created: int = 0
    """When the Service was created (see `Service.created`)."""
    endpoints: tuple[Target, ...] = ()
    """The endpoints, sorted and without duplicates, so that equal sets are equal values."""
    staying: tuple[Target, ...] = ()
    """Endpoints that get no new clients, but keep their flows; sorted. Only UDP needs them, because it has no
    connections that continue by themselves."""
    neighbors: tuple[Target, ...] = ()
    """The endpoints that may be on this node, and so may be clients of the frontend themselves."""
    preserve: frozenset[Target] = frozenset()
    """The endpoints that are dialed from the client's own address."""
    affinity_timeout_s: int | None = None
    balancing: Balancing = ROUND_ROBIN
    when_empty: Verdict = Verdict.REFUSE

    def keeping(self, endpoints: Container[Target]) -> Frontend:
        """Return the frontend with these of its endpoints alone."""
        kept = [target in endpoints for target in self.endpoints]
        weights = tuple(compress(self.balancing.weights, kept))
        return replace(
            self,
            endpoints=tuple(compress(self.endpoints, kept)),
            preserve=frozenset(target for target in self.preserve if target in endpoints),
            balancing=self.balancing._replace(weights=weights),
        )
