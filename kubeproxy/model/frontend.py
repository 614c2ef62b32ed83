"""A frontend, which is the part of a service port that one listener serves. The control plane computes frontends from
Services."""

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
    """The traffic that a frontend serves, if traffic policies distinguish clients."""

    CLUSTER = "cluster"
    """Traffic for which the policy is Cluster. Most service ports have only this frontend."""
    LOCAL = "local"
    """Traffic to cluster IPs if internalTrafficPolicy is Local. Only endpoints on this node are used."""
    EXTERNAL = "external"
    """Traffic to node ports, external IPs and load balancer addresses if externalTrafficPolicy is Local. Only endpoints
    on this node are used, and they see the client's address."""


class Claim(IntEnum):
    """Where a Service has an address from. If two Services have the same address, the lower value wins."""

    ALLOCATED = 0
    """A cluster IP or node port, which an API server allocates to only one Service."""
    LOAD_BALANCER = 1
    """An address in the Service's status, which a controller writes."""
    EXTERNAL = 2
    """An address in spec.externalIPs. The author of a Service may write any address there (CVE-2020-8554)."""


class Verdict(StrEnum):
    """What happens to packets for a frontend without endpoints."""

    REFUSE = "refuse"
    DROP = "drop"


class FrontendName(NamedTuple):
    """The identity of a frontend. Its listener and its proxy port have the same identity."""

    service_port: ServicePortName
    family: Family
    scope: Scope = Scope.CLUSTER

    def __str__(self) -> str:
        scope = "" if self.scope is Scope.CLUSTER else f" ({self.scope})"
        return f"{self.service_port} {self.family}{scope}"


NODE_PORTS = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The address, by family, of Destinations that mean all addresses of this node that accept node ports."""


class Destination(NamedTuple):
    """The address, protocol and port to which clients send packets. The address of a node port is in `NODE_PORTS`."""

    address: Address
    protocol: Protocol
    port: int


class Origin(IntEnum):
    """The location of the clients that a rule is for. If a packet matches several rules, the lower value comes
    first."""

    NODE = 0
    """This node itself and its pods."""
    ANYWHERE = 1


class Traffic(NamedTuple):
    """The packets from clients of one origin to one destination."""

    destination: Destination
    origin: Origin = Origin.ANYWHERE


class Target(NamedTuple):
    """The address and port of an endpoint, to which connections are dialed."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Frontend:
    """The destinations that one listener serves, and the endpoints to which it sends their connections."""

    name: FrontendName
    protocol: Protocol
    destinations: Mapping[Destination, Origin]
    """The destinations that the frontend serves, each with the origin of the clients. Another frontend may serve the
    same destination for clients on this node, for which externalTrafficPolicy Local allows any endpoint of the cluster.
    Pods count as such clients if the cluster's address ranges are known."""
    source_ranges: frozenset[str] = frozenset()
    """The CIDRs of this family from which clients may reach the `ranged` destinations, or empty if there is no
    restriction."""
    ranged: frozenset[Destination] = frozenset()
    """The destinations that are load balancer addresses, to which `source_ranges` applies."""
    claims: Mapping[Destination, Claim] = field(default_factory=dict)
    """The claim of each destination. Destinations that are not listed are `Claim.ALLOCATED`."""
    created: int = 0
    """When the Service was created (see `Service.created`)."""
    endpoints: tuple[Target, ...] = ()
    """The endpoints, sorted and without duplicates, so that equal sets are equal values."""
    staying: tuple[Target, ...] = ()
    """Endpoints that get no new clients, but keep their present clients; sorted. It is used only for UDP, which has no
    connections that would continue by themselves."""
    neighbors: tuple[Target, ...] = ()
    """The endpoints that may be on this node. They may be clients of their own frontend."""
    preserve: frozenset[Target] = frozenset()
    """The endpoints that are dialed with the client's address as source address."""
    affinity_timeout_s: int | None = None
    balancing: Balancing = ROUND_ROBIN
    settled: Balancing | None = None
    """The balancing after a slow start, or None if none is in progress."""
    when_empty: Verdict = Verdict.REFUSE

    def keeping(self, endpoints: Container[Target]) -> Frontend:
        """Return a frontend that has only the endpoints of this frontend that are also in `endpoints`."""
        kept = [target in endpoints for target in self.endpoints]

        def of_kept(balancing: Balancing) -> Balancing:
            return balancing._replace(weights=tuple(compress(balancing.weights, kept)))

        return replace(
            self,
            endpoints=tuple(compress(self.endpoints, kept)),
            preserve=frozenset(target for target in self.preserve if target in endpoints),
            balancing=of_kept(self.balancing),
            settled=of_kept(self.settled) if self.settled else None,
        )
