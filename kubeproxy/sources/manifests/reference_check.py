"""Finds mistakes in references between objects: slices without a Service, unknown port names, and addresses of two
Services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from kubeproxy.model import EndpointSlice, Protocol, Service, ServiceName
from kubeproxy.sources.manifests.documents import Piece

Where = tuple[str, Piece]
"""The name of a manifest, and an object in it."""


@dataclass(frozen=True, slots=True)
class Defined:
    """The Services and EndpointSlices of all manifests, each with its manifest and its text."""

    services: Mapping[ServiceName, tuple[Where, Service | None]] = field(default_factory=dict)
    """The Services by name. The value has None for a Service that is headless, faulty, or served by another proxy."""
    slices: Sequence[tuple[Where, EndpointSlice]] = ()


def warnings(defined: Defined) -> Iterator[tuple[Where, str, str]]:
    """Yield each mistake: the object, the path of the field, and a message."""
    yield from _dangling(defined)
    yield from _port_names(defined)
    yield from _same_addresses(defined.services.values())


def _dangling(defined: Defined) -> Iterator[tuple[Where, str, str]]:
    for where, one in defined.slices:
        if one.service in defined.services:
            continue
        known = [name.name for name in defined.services if name.namespace == one.service.namespace]
        near = get_close_matches(one.service.name, known, n=1)
        elsewhere = [str(name) for name in defined.services if name.name == one.service.name]
        hint = f"; did you mean {near[0]}?" if near else f"; there is {elsewhere[0]}" if elsewhere else ""
        message = f"no manifest defines Service {one.service}, so these endpoints are not used{hint}"
        yield where, "metadata", message


def _port_names(defined: Defined) -> Iterator[tuple[Where, str, str]]:
    """Yield ports of slices that the Service lacks, and ports of Services that all slices lack."""
    of_slices: dict[ServiceName, set[tuple[str, Protocol]]] = defaultdict(set)
    for where, one in defined.slices:
        known = defined.services.get(one.service)
        if known is None or (service := known[1]) is None:
            continue
        wanted = {(port.name, port.protocol) for port in service.ports}
        for port in one.ports:
            of_slices[one.service].add((port.name, port.protocol))
            if (port.name, port.protocol) not in wanted:
                yield (
                    where,
                    "ports",
                    f"{_port(port.name, port.protocol)} is no port of Service {one.service}{_has(wanted)}",
                )
    for name, (where, service) in defined.services.items():
        if service is None or not of_slices[name]:
            continue
        for number, served in enumerate(service.ports):
            if served.protocol is not Protocol.SCTP and (served.name, served.protocol) not in of_slices[name]:
                message = f"no EndpointSlice has {_port(served.name, served.protocol)}{_has(of_slices[name])}"
                yield where, f"spec.ports[{number}]", f"{message}; clients are refused"


def _port(name: str, protocol: Protocol) -> str:
    return f"a port {name!r} ({protocol})" if name else f"a {protocol} port without a name"


def _has(ports: Iterable[tuple[str, Protocol]]) -> str:
    return f"; there is {', '.join(f'{name!r} ({protocol})' for name, protocol in sorted(ports))}" if ports else ""


def _same_addresses(services: Iterable[tuple[Where, Service | None]]) -> Iterator[tuple[Where, str, str]]:
    first: dict[tuple[str, Protocol, int], ServiceName] = {}
    for where, service in services:
        if service is None:
            continue
        for path, address, protocol, port in _addresses(service):
            owner = first.setdefault((address, protocol, port), service.name)
            if owner != service.name:
                what = f"{address}:{port}" if address else f"node port {port}"
                yield where, path, f"{what} ({protocol}) is of Service {owner}, too; only one of the two gets it"


def _addresses(service: Service) -> Iterator[tuple[str, str, Protocol, int]]:
    """Yield the path, address, protocol and port of each destination of a Service. The address of a node port is
    empty."""
    by_path = (
        ("spec.clusterIP", service.cluster_ips),
        ("spec.externalIPs", service.external_ips),
        ("status.loadBalancer", service.load_balancer_ips),
    )
    for number, port in enumerate(service.ports):
        for path, addresses in by_path:
            for address in addresses:
                yield path, address, port.protocol, port.port
        if port.node_port:
            yield f"spec.ports[{number}].nodePort", "", port.protocol, port.node_port
