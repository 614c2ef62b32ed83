"""One Service and its EndpointSlices -> the frontends that it asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kubeproxy.model import (
    Destination,
    Endpoint,
    EndpointSlice,
    Family,
    Frontend,
    FrontendName,
    Service,
    ServicePort,
    ServicePortName,
    Target,
    family_of,
)


class Candidate(NamedTuple):
    """Somebody who could answer for a service port, if the conditions and policies allow it."""

    target: Target
    endpoint: Endpoint


def resolve(service: Service, slices: Sequence[EndpointSlice]) -> tuple[Frontend, ...]:
    """A frontend for every service port and every family in which the Service has an address."""
    families = sorted({family_of(address) for address in service.cluster_ips})
    return tuple(_frontend(service, port, family, slices) for port in service.ports for family in families)


def _frontend(service: Service, port: ServicePort, family: Family, slices: Sequence[EndpointSlice]) -> Frontend:
    return Frontend(
        name=FrontendName(ServicePortName(*service.name, port.name), family),
        protocol=port.protocol,
        destinations=frozenset(
            Destination(address, port.protocol, port.port)
            for address in service.cluster_ips
            if family_of(address) is family
        ),
        endpoints=tuple(sorted(set(usable(candidates(slices, port, family))))),
        affinity_timeout_s=service.affinity_timeout_s,
    )


def candidates(slices: Iterable[EndpointSlice], port: ServicePort, family: Family) -> list[Candidate]:
    """Everybody who listens for a service port. An endpoint port serves the service port of the same name and
    protocol, whatever its number; each slice has numbers of its own."""
    return [
        Candidate(Target(endpoint.address, endpoint_port.port), endpoint)
        for endpoint_slice in slices
        if endpoint_slice.family is family
        for endpoint_port in endpoint_slice.ports
        if endpoint_port.name == port.name and endpoint_port.protocol is port.protocol
        for endpoint in endpoint_slice.endpoints
    ]


def usable(everybody: Sequence[Candidate]) -> list[Target]:
    """Those who are ready; if nobody is, those who terminate but still serve (kube-proxy's CategorizeEndpoints), so
    that a rollout which takes the last endpoint away does not refuse clients that could be served.

    An endpoint that two slices name, as happens while it moves from one to the other, is ready if either says so.
    """
    ready = [candidate.target for candidate in everybody if candidate.endpoint.ready]
    return ready or [target for target, endpoint in everybody if endpoint.serving and endpoint.terminating]
