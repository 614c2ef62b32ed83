"""Selects the endpoints of a service port: by readiness, traffic policy and topology.

The rules are those of kube-proxy's CategorizeEndpoints (pkg/proxy/topology.go), decided for one family at a time:

    cluster_wide   ready endpoints that the hints allot to this node; if none is ready, serving terminating endpoints
    local          the same for the endpoints on this node only, ignoring hints

Hints are used only if every ready endpoint has one, and at least one hint names this node or zone. Hints for nodes
(PreferSameNode) are tried first, and then hints for zones (PreferSameZone). So topology never leaves a client without
an endpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from kubeproxy.model import Endpoint, EndpointSlice, Family, ServicePort, Target
from kubeproxy.proxier.node import NodeFacts

MOST = 4096
"""The largest number of endpoints of one frontend that a node uses: four times as many as an Endpoints object may have.
A worker does nothing else while it applies a change. With 100,000 endpoints of one tenant, each change would block the
clients of all other tenants for half a second; with this number it blocks them for some milliseconds."""


class Candidate(NamedTuple):
    """An endpoint of a service port, usable or not."""

    target: Target
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected endpoints of a service port. Each tuple is sorted, so that equal sets are equal values."""

    cluster_wide: tuple[Target, ...]
    """The endpoints for the Cluster policies."""
    local: tuple[Target, ...]
    """The endpoints for the Local policies."""
    on_this_node: frozenset[Target]
    """The selected endpoints on this node, without those that are processes of the host itself."""
    elsewhere: frozenset[Target]
    """Endpoints that are known to be on other nodes."""

    @property
    def any_usable(self) -> bool:
        """Return whether the cluster has any usable endpoint."""
        return bool(self.cluster_wide)


def candidates(slices: Iterable[EndpointSlice], port: ServicePort, family: Family) -> list[Candidate]:
    """Return all endpoints of a service port, each once.

    An endpoint port belongs to the service port of the same name and protocol; its number may differ between slices. An
    endpoint may be in several slices while it moves from one to another. Then its best conditions count."""
    found: dict[Target, Endpoint] = {}
    for endpoint_slice in slices:
        if endpoint_slice.family is not family:
            continue
        for endpoint_port in endpoint_slice.ports:
            if endpoint_port.name != port.name or endpoint_port.protocol is not port.protocol:
                continue
            for endpoint in endpoint_slice.endpoints:
                target = Target(endpoint.address, endpoint_port.port)
                known = found.get(target)
                if known is None or _rank(endpoint) > _rank(known):
                    found[target] = endpoint
    return [Candidate(target, endpoint) for target, endpoint in found.items()]


def _rank(endpoint: Endpoint) -> tuple[bool, bool]:
    return endpoint.ready, _serves_while_terminating(endpoint)


def choose(all_candidates: Sequence[Candidate], facts: NodeFacts) -> Choice:
    """Return the endpoints that get new connections."""
    local = [candidate for candidate in all_candidates if is_local(candidate.endpoint, facts)]
    ready = [candidate for candidate in all_candidates if candidate.endpoint.ready]
    return Choice(
        cluster_wide=_usable(_by_topology(ready, facts) or all_candidates),
        local=_usable(local),
        on_this_node=frozenset(target for target, _ in local if not facts.is_own(target.address)),
        elsewhere=frozenset(
            target for target, endpoint in all_candidates if endpoint.node and endpoint.node != facts.name
        ),
    )


def staying(all_candidates: Sequence[Candidate], endpoints: tuple[Target, ...]) -> tuple[Target, ...]:
    """Return the endpoints that keep their flows but get no new ones, sorted. As in kube-proxy (pkg/proxy/conntrack),
    policies, topology and termination affect new flows only."""
    serving = {target for target, endpoint in all_candidates if endpoint.ready or endpoint.serving}
    return tuple(sorted(serving.difference(endpoints)))


def subset(targets: Sequence[Target], node: str) -> tuple[Target, ...]:
    """Return the `MOST` targets that a node uses, sorted. Different nodes use different targets, so that each endpoint
    is used by about the same number of nodes. When a target is added or removed, at most one other target changes on a
    node."""
    seed = node.encode()

    def rank(target: Target) -> bytes:
        return hashlib.blake2b(f"{target.address} {target.port}".encode(), digest_size=8, key=seed[:64]).digest()

    return tuple(sorted(nsmallest(MOST, targets, key=rank)))


def is_local(endpoint: Endpoint, facts: NodeFacts) -> bool:
    """Return whether an endpoint is on this node."""
    return endpoint.node != "" and endpoint.node == facts.name


def _usable(some: Sequence[Candidate]) -> tuple[Target, ...]:
    """Return the ready endpoints. If none is ready, return the terminating endpoints that still serve.

    So a rollout that removes the last ready endpoint does not refuse clients that could still be served.
    """
    ready = [target for target, endpoint in some if endpoint.ready]
    return tuple(sorted(ready or [target for target, endpoint in some if _serves_while_terminating(endpoint)]))


def _serves_while_terminating(endpoint: Endpoint) -> bool:
    return endpoint.serving and endpoint.terminating


def _by_topology(ready: Sequence[Candidate], facts: NodeFacts) -> Sequence[Candidate]:
    """Return the ready candidates that the hints allot to this node. If hints are not used, return all ready
    candidates."""
    return _hinted(ready, facts.name, _node_hints) or _hinted(ready, facts.zone, _zone_hints) or ready


def _hinted(
    ready: Sequence[Candidate], us: str, hints: Callable[[Endpoint], frozenset[str]]
) -> Sequence[Candidate] | None:
    """Return the candidates with a hint for `us`. Return None if a candidate has no hint, or if `us` is unknown
    (empty)."""
    if not us or not all(hints(endpoint) for _, endpoint in ready):
        return None
    return [candidate for candidate in ready if us in hints(candidate.endpoint)]


def _node_hints(endpoint: Endpoint) -> frozenset[str]:
    return endpoint.node_hints


def _zone_hints(endpoint: Endpoint) -> frozenset[str]:
    return endpoint.zone_hints
