"""Removes endpoints, addresses and ports that the configuration forbids to Services.

An API server holds the objects of many authors, and this proxy dials from the node's address, with the node's rights in
network policies and firewalls. So endpoints from an API server are restricted by default. The author of a manifest
already controls this node, so only restrictions that are configured explicitly apply to manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model import (
    Address,
    Endpoint,
    EndpointSlice,
    Protocol,
    Service,
    ServiceName,
    SliceName,
)
from kubeproxy.proxier.cidr_set import NO_BLOCKS, CidrSet
from kubeproxy.proxier.endpoint_selection import is_local
from kubeproxy.proxier.node import NodeFacts

_SHOWN = 3
"""How many addresses a remark names. The others are only counted."""

_API_SERVER = ServiceName("default", "kubernetes")
"""The Service of the API server. The API server itself writes the EndpointSlice of this Service, or Endpoints of the
same name, without a node name. On a control plane node its endpoint has this node's address."""


class NodePortConflict(StrEnum):
    """What happens to a node port at which another process listens."""

    TAKE_UNPRIVILEGED = "take-unprivileged"
    """The port is redirected unless the process belongs to root or to this daemon's user."""
    TAKE = "take"
    """The port is redirected, as by kube-proxy."""
    KEEP = "keep"
    """The process keeps the port."""


class PortSpan(NamedTuple):
    """The ports from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The configured restrictions. By default nothing is restricted, and processes keep their ports against node
    ports."""

    denied_endpoints: CidrSet = NO_BLOCKS
    """CIDRs whose addresses are never dialed for Services of `trusted` sources."""
    denied_foreign_endpoints: CidrSet = NO_BLOCKS
    """CIDRs whose addresses are never dialed for Services of other sources."""
    deny_node: bool = False
    """Whether an endpoint with an address of this node must be on this node (nodeName). This applies only to sources
    that are not `trusted`."""
    trusted: frozenset[str] | None = None
    """The sources written by the operator of this node, or None if all are."""
    external: CidrSet | None = None
    """CIDRs for external and load balancer addresses, or None if any address is allowed."""
    external_ports: tuple[PortSpan, ...] | None = None
    """The ports that spec.externalIPs may take at this node's own addresses, or None for any."""
    own_ports: Mapping[int, str] = field(default_factory=dict)
    """The TCP ports of this daemon's own servers, each with the setting that configures it."""
    reserved_ports: tuple[PortSpan, ...] = ()
    """Ports of this node that no Service may have."""
    node_port_conflict: NodePortConflict = NodePortConflict.KEEP

    def reserved(self, protocol: Protocol, port: int) -> str:
        """Return why no Service may have a port of this node, or an empty text if a Service may."""
        if protocol is Protocol.TCP and port in self.own_ports:
            return f"this proxy's own server has that port ({self.own_ports[port]})"
        if _within(port, self.reserved_ports):
            return "kubeproxy.reservedPorts reserves that port for this node"
        return ""

    def permits_external(self, port: int) -> bool:
        """Return whether spec.externalIPs may take a port at an address of this node."""
        return self.external_ports is None or _within(port, self.external_ports)


NO_RESTRICTIONS = Restrictions()


class Admitted(NamedTuple):
    """A Service and its slices, without what is forbidden."""

    service: Service
    slices: tuple[EndpointSlice, ...]
    remarks: tuple[str, ...]
    """What is forbidden, with the reasons."""


def admit(
    service: Service, slices: tuple[EndpointSlice, ...], *, source: str, restrictions: Restrictions, facts: NodeFacts
) -> Admitted:
    """Return a Service without what is forbidden. If nothing is, return the same objects."""
    remarks: list[str] = []
    service = _admit_service(service, restrictions, remarks)
    trusted = restrictions.trusted is None or source in restrictions.trusted
    refused: dict[str, dict[Address, None]] = {}
    admitted = tuple(_admit_slice(it, restrictions, facts, trusted, refused) for it in slices)
    for reason, addresses in refused.items():
        remarks.append(f"endpoints are not dialed: {_listed(list(addresses))}: {reason}")
    return Admitted(service, admitted if refused else slices, tuple(remarks))


def _admit_service(service: Service, restrictions: Restrictions, remarks: list[str]) -> Service:
    allowed = restrictions.external
    if allowed is not None:
        outside = [it for it in service.external_ips + service.load_balancer_ips if it not in allowed]
        if outside:
            remarks.append(f"not served at {_listed(outside)}: outside kubeproxy.externalAddressCIDRs")
            service = replace(
                service,
                external_ips=tuple(it for it in service.external_ips if it not in outside),
                load_balancer_ips=tuple(it for it in service.load_balancer_ips if it not in outside),
            )
    port = service.health_check_node_port
    if port and (reason := restrictions.reserved(Protocol.TCP, port)):
        remarks.append(f"health check node port {port} is not served: {reason}")
        service = replace(service, health_check_node_port=0)
    return service


def _admit_slice(
    it: EndpointSlice,
    restrictions: Restrictions,
    facts: NodeFacts,
    trusted: bool,
    refused: dict[str, dict[Address, None]],
) -> EndpointSlice:
    own = it.service == _API_SERVER and _is_own_slice(it.name)
    admitted = []
    for endpoint in it.endpoints:
        if reason := _refusal(endpoint, restrictions, facts, trusted=trusted, of_api_server=own):
            refused.setdefault(reason, {})[endpoint.address] = None
        else:
            admitted.append(endpoint)
    return it if len(admitted) == len(it.endpoints) else replace(it, endpoints=tuple(admitted))


def _is_own_slice(name: SliceName) -> bool:
    # The name of a slice that was converted from Endpoints has a suffix after "/", which no API object's name can
    # contain.
    return (name.namespace, name.name.partition("/")[0]) == _API_SERVER


def _refusal(
    endpoint: Endpoint, restrictions: Restrictions, facts: NodeFacts, *, trusted: bool, of_api_server: bool
) -> str:
    address = endpoint.address
    if trusted:
        return _DENIED if address in restrictions.denied_endpoints else ""
    if address in restrictions.denied_foreign_endpoints:
        return _DENIED
    if _is_loopback(address):
        return "loopback addresses are endpoints in manifests only"
    if restrictions.deny_node and address in facts.own_addresses and not (of_api_server or is_local(endpoint, facts)):
        return (
            "an address of this node, which is an endpoint only with this node's name as nodeName, or without the word"
            " node in kubeproxy.deniedEndpointCIDRs"
        )
    return ""


_DENIED = "kubeproxy.deniedEndpointCIDRs denies them"


def _is_loopback(address: Address) -> bool:
    return address.startswith("127.") or address == "::1"


def _within(port: int, spans: Sequence[PortSpan]) -> bool:
    return any(first <= port <= last for first, last in spans)


def _listed(addresses: Sequence[Address]) -> str:
    return ", ".join(_first(addresses))


def _first(addresses: Sequence[Address]) -> Iterator[str]:
    yield from addresses[:_SHOWN]
    if len(addresses) > _SHOWN:
        yield f"{len(addresses) - _SHOWN} more"
