"""What must hold of everything that a decoder lets through."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from kubeproxy.model import Address, EndpointSlice, Node, Service, family_of, parse_address
from kubeproxy.proxier.frontends import resolve
from kubeproxy.proxier.node import NodeFacts, Preserve

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NODE = NodeFacts(
    name="node-a",
    zone="zone-a",
    node_addresses=frozenset({Address("192.0.2.1"), Address("2001:db8::1")}),
    own_addresses=frozenset({Address("192.0.2.1")}),
    preserve=Preserve.LOCAL,
)


def canonical(addresses: Iterable[Address]) -> None:
    """Addresses are in the form in which the model has them."""
    for address in addresses:
        assert parse_address(address) == address, address


def port(number: int, *, least: int = 1) -> None:
    """A port is one."""
    assert least <= number <= 65535, number


def check_service(service: Service) -> None:
    """A Service is one that the model can have, and it can be resolved."""
    assert LABEL.fullmatch(service.name.namespace), service.name
    assert LABEL.fullmatch(service.name.name), service.name
    canonical((*service.cluster_ips, *service.external_ips, *service.load_balancer_ips))
    assert len({family_of(address) for address in service.cluster_ips}) == len(service.cluster_ips)
    assert service.ports
    for each in service.ports:
        port(each.port)
        port(each.node_port, least=0)
        assert not each.name or LABEL.fullmatch(each.name), each.name
    assert len({each.name for each in service.ports}) == len(service.ports)
    assert service.affinity_timeout_s is None or 1 <= service.affinity_timeout_s <= 86400
    port(service.health_check_node_port, least=0)
    for cidr in service.load_balancer_source_ranges:
        assert str(ipaddress.ip_network(cidr)) == cidr
    resolvable(service, ())


def check_slice(endpoint_slice: EndpointSlice) -> None:
    """An EndpointSlice is one that the model can have."""
    assert LABEL.fullmatch(endpoint_slice.name.namespace), endpoint_slice.name
    assert len(endpoint_slice.name.name) < 300
    canonical(endpoint.address for endpoint in endpoint_slice.endpoints)
    for endpoint in endpoint_slice.endpoints:
        assert family_of(endpoint.address) is endpoint_slice.family
    for each in endpoint_slice.ports:
        port(each.port)
        assert not each.name or LABEL.fullmatch(each.name), each.name


def check_node(node: Node) -> None:
    """A Node is one that the model can have."""
    assert 0 < len(node.name) <= 253
    canonical(node.addresses)


def resolvable(service: Service, slices: Iterable[EndpointSlice]) -> None:
    """Whatever endpoints come with it, a Service becomes frontends, and each frontend is sound."""
    found = list(slices)
    for frontend in resolve(service, found, NODE).frontends:
        assert frontend.destinations
        for target in frontend.endpoints:
            canonical([target.address])
            port(target.port)
        for destination in frontend.destinations:
            canonical([destination.address])
            port(destination.port)
        assert frontend.preserve <= set(frontend.endpoints)
        assert list(frontend.endpoints) == sorted(set(frontend.endpoints))
