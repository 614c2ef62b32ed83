"""Resolves one Service and its EndpointSlices into frontends.

A service port has up to three frontends in each family, one per scope; a scope without destinations has none:

                              cluster IPs        external IPs, load balancer addresses, node port
    policy Cluster            CLUSTER            CLUSTER
    policy Local              LOCAL              EXTERNAL; from this node and its pods: CLUSTER

The policy is internalTrafficPolicy for the left column and externalTrafficPolicy for the right one. Clients on this
node, including its pods, are inside the cluster whichever address they dial. So externalTrafficPolicy does not restrict
their endpoints (kube-proxy calls this the short circuit).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Balancing,
    Claim,
    Destination,
    EndpointSlice,
    Family,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    Scheduler,
    Scope,
    Service,
    ServicePort,
    ServicePortName,
    Target,
    TrafficPolicy,
    Verdict,
    family_of,
    seed_of,
)
from kubeproxy.proxier.endpoint_selection import Choice, candidates, choose, is_local, staying
from kubeproxy.proxier.node import UNKNOWN_NODE, NodeFacts, Preserve


class Resolved(NamedTuple):
    """The result of resolving a Service and its slices."""

    frontends: tuple[Frontend, ...] = ()
    """The frontends of every service port, in every family in which it has an address."""
    unreachable: tuple[Address, ...] = ()
    """The load balancer addresses that are not served, because no client may reach them."""
    health: tuple[int, int] | None = None
    """The health check node port and the number of ready endpoints on this node, or None if the Service has no such
    port."""


NOT_SERVED = Resolved()

_NONE: Final[frozenset[Any]] = frozenset()
"""One shared empty set, because each empty set takes 216 bytes."""


def resolve(
    service: Service,
    slices: Sequence[EndpointSlice],
    facts: NodeFacts = UNKNOWN_NODE,
    scheduler: Scheduler = Scheduler.ROUND_ROBIN,
) -> Resolved:
    """Resolve a Service and its slices on this node. `scheduler` is the default for Services that do not name one."""
    spreading = _spreading(service, scheduler)
    frontends = tuple(
        frontend
        for port in service.ports
        for family in Family
        for frontend in _frontends(service, port, family, slices, facts, spreading)
    )
    return Resolved(frontends, _without_source_range(service), _health(service, slices, facts))


def _spreading(service: Service, scheduler: Scheduler) -> Balancing:
    """Return how a Service balances its clients, without the weights of its endpoints."""
    wanted = service.scheduler or scheduler
    return Balancing(wanted, seed=seed_of(*service.name) if wanted.hashes else 0)


def _weighed(spreading: Balancing, endpoints: Sequence[Target], weights: Mapping[Target, int]) -> Balancing:
    """Return the balancing with the weights of these endpoints. If all weights are equal, return the same value."""
    found = tuple(weights.get(target, 1) for target in endpoints) if weights else ()
    return spreading._replace(weights=found) if len(set(found)) > 1 else spreading


def _frontends(
    service: Service,
    port: ServicePort,
    family: Family,
    slices: Sequence[EndpointSlice],
    facts: NodeFacts,
    spreading: Balancing,
) -> Iterator[Frontend]:
    internal = _destinations(service.cluster_ips, port, family)
    balanced = _destinations(service.load_balancer_ips, port, family)
    ranges = _of_family(service.load_balancer_source_ranges, family)
    external = _destinations(service.external_ips, port, family) | balanced | _node_port(service, port, family)
    if service.load_balancer_source_ranges and not ranges:
        external -= balanced
    if not (internal or external):
        return
    claims = _claims(service, port, family)
    all_candidates = candidates(slices, port, family)
    choice = choose(all_candidates, facts)
    weights = {target: endpoint.weight for target, endpoint in all_candidates if endpoint.weight != 1}
    taken_by: dict[Scope, dict[Destination, Origin]] = {scope: {} for scope in Scope}
    if service.internal_policy is TrafficPolicy.LOCAL:
        taken_by[Scope.LOCAL] |= dict.fromkeys(internal, Origin.ANYWHERE)
    else:
        taken_by[Scope.CLUSTER] |= dict.fromkeys(internal, Origin.ANYWHERE)
    if service.external_policy is TrafficPolicy.LOCAL:
        taken_by[Scope.EXTERNAL] |= dict.fromkeys(external, Origin.ANYWHERE)
        taken_by[Scope.CLUSTER] |= dict.fromkeys(external, Origin.NODE)
    else:
        taken_by[Scope.CLUSTER] |= dict.fromkeys(external, Origin.ANYWHERE)
    for scope, destinations in taken_by.items():
        if not destinations:
            continue
        endpoints = choice.cluster_wide if scope is Scope.CLUSTER else choice.local
        ranged = balanced & destinations.keys()
        yield Frontend(
            name=FrontendName(ServicePortName(*service.name, port.name), family, scope),
            protocol=port.protocol,
            destinations=destinations,
            source_ranges=ranges if ranged else _NONE,
            ranged=ranged if ranges else _NONE,
            endpoints=endpoints,
            staying=staying(all_candidates, endpoints) if port.protocol is Protocol.UDP else (),
            claims={d: claim for d, claim in claims.items() if d in destinations},
            created=service.created,
            neighbors=_neighbors(endpoints, choice),
            preserve=_preserved(endpoints, scope, choice, facts),
            affinity_timeout_s=service.affinity_timeout_s,
            balancing=_weighed(spreading, endpoints, weights),
            when_empty=Verdict.DROP if choice.any_usable and not endpoints else Verdict.REFUSE,
        )


def _destinations(addresses: Iterable[Address], port: ServicePort, family: Family) -> frozenset[Destination]:
    return frozenset(
        Destination(address, port.protocol, port.port) for address in addresses if family_of(address) is family
    )


def _claims(service: Service, port: ServicePort, family: Family) -> dict[Destination, Claim]:
    """Return for each external address of the Service the field that gives it. If several fields give the same address,
    the strongest one counts."""
    allocated = _destinations(service.cluster_ips, port, family)
    claims = dict.fromkeys(_destinations(service.external_ips, port, family), Claim.EXTERNAL)
    claims |= dict.fromkeys(_destinations(service.load_balancer_ips, port, family), Claim.LOAD_BALANCER)
    return {destination: claim for destination, claim in claims.items() if destination not in allocated}


def _node_port(service: Service, port: ServicePort, family: Family) -> frozenset[Destination]:
    """Return the node port of a service port, in the families of the cluster IPs. A Service without cluster IP (which
    only a manifest can define) has its node ports in both families."""
    if not port.node_port:
        return frozenset()
    if service.cluster_ips and family not in map(family_of, service.cluster_ips):
        return frozenset()
    return frozenset({Destination(NODE_PORTS[family], port.protocol, port.node_port)})


def _of_family(cidrs: Iterable[str], family: Family) -> frozenset[str]:
    return frozenset(cidr for cidr in cidrs if ipaddress.ip_network(cidr).version == family)


def _preserved(endpoints: tuple[Target, ...], scope: Scope, choice: Choice, facts: NodeFacts) -> frozenset[Target]:
    """Return the endpoints that are dialed from the client's address. Processes of this host are excluded, because
    their answers to the client would leave the host without passing through this proxy."""
    asked = facts.preserve is Preserve.LOCAL or (facts.preserve is Preserve.EXTERNAL_LOCAL and scope is Scope.EXTERNAL)
    return choice.on_this_node.intersection(endpoints) if asked else _NONE


def _neighbors(endpoints: tuple[Target, ...], choice: Choice) -> tuple[Target, ...]:
    if choice.elsewhere.isdisjoint(endpoints):
        # Avoid a copy: the endpoints of most Services are all on this node, or none names a node.
        return endpoints
    return tuple(target for target in endpoints if target not in choice.elsewhere)


def _without_source_range(service: Service) -> tuple[Address, ...]:
    """Return the load balancer addresses that no client may reach, because loadBalancerSourceRanges has no range of
    their family. kube-proxy looks at each family alone and takes this as "no restriction". But an author who lists the
    allowed clients hardly means to allow all clients of the other family. So such an address is not served, and a
    problem is reported."""
    ranges = service.load_balancer_source_ranges
    if not ranges:
        return ()
    return tuple(a for a in service.load_balancer_ips if not _of_family(ranges, family_of(a)))


def _health(service: Service, slices: Sequence[EndpointSlice], facts: NodeFacts) -> tuple[int, int] | None:
    """Return the value of `Resolved.health`. As in kube-proxy, it counts addresses, not ports, and excludes terminating
    endpoints even if they still serve. The families are counted separately and the greater number is returned, so that
    a dual-stack pod counts once."""
    if not service.health_check_node_port:
        return None
    found: dict[Family, set[Address]] = {family: set() for family in Family}
    for endpoint_slice in slices:
        if endpoint_slice.ports:
            found[endpoint_slice.family].update(
                endpoint.address
                for endpoint in endpoint_slice.endpoints
                if endpoint.ready and is_local(endpoint, facts)
            )
    return service.health_check_node_port, max(map(len, found.values()))
