"""A frontend: one listener's worth of a service port, the result of the control plane's decisions."""

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
    """Which traffic a frontend takes, where policies distinguish clients."""

    CLUSTER = "cluster"
    """Traffic under the Cluster policy; for most service ports the only frontend."""
    LOCAL = "local"
    """Traffic to cluster IPs under internalTrafficPolicy Local: only this node's endpoints answer."""
    EXTERNAL = "external"
    """Traffic to node ports, external and load balancer addresses under externalTrafficPolicy Local: only this node's
    endpoints answer, and they see the client's own address."""


class Claim(IntEnum):
    """How a Service comes by an address: the lower value wins where two Services have the same."""

    ALLOCATED = 0
    """Cluster IPs and node ports, which an API server gives to one Service alone."""
    LOAD_BALANCER = 1
    """In the Service's status, which a controller writes."""
    EXTERNAL = 2
    """In spec.externalIPs, where every author of a Service may write any address (CVE-2020-8554)."""


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
"""Address of a Destination that means: every address of this node that accepts node ports."""


class Destination(NamedTuple):
    """The address that a client uses, before the redirect. A node port has the address `NODE_PORTS`."""

    address: Address
    protocol: Protocol
    port: int


class Target(NamedTuple):
    """Address and port of an endpoint: what a dial connects to."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Frontend:
    """What one listener takes in (destinations) and hands out (endpoints)."""

    name: FrontendName
    protocol: Protocol
    destinations: frozenset[Destination]
    """Taken from every client, except what another frontend has among its `own_destinations`."""
    own_destinations: frozenset[Destination] = frozenset()
    """Taken only from this node itself and, where the cluster's own addresses are known, from pods: under
    externalTrafficPolicy Local any endpoint in the cluster may serve these clients."""
    source_ranges: frozenset[str] = frozenset()
    """CIDRs of this family allowed to reach the `ranged` destinations. Empty without a restriction."""
    ranged: frozenset[Destination] = frozenset()
    """The load balancer addresses among the destinations."""
    claims: Mapping[Destination, Claim] = field(default_factory=dict)
    """How the Service comes by a destination; those not named are `Claim.ALLOCATED`."""
    created: int = 0
    """Of the Service; see there."""
    endpoints: tuple[Target, ...] = ()
    """Sorted and without duplicates, so that equal sets are equal values."""
    neighbors: tuple[Target, ...] = ()
    """Endpoints that may be on this node, and so may be its own clients."""
    preserve: frozenset[Target] = frozenset()
    """Endpoints that are dialed from the client's own address."""
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
