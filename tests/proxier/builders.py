"""Short builders for the objects of a cluster."""

from __future__ import annotations

from kubeproxy.model import (
    Address,
    Destination,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    FrontendName,
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    ServicePortName,
    SliceName,
    Target,
    family_of,
    parse_address,
)


def name(text: str) -> ServiceName:
    """Parses ``web`` (in the namespace ``default``) or ``kube-system/dns``."""
    namespace, _, bare = text.rpartition("/")
    return ServiceName(namespace or "default", bare)


def port(text: str) -> ServicePort:
    """Parses ``80``, ``http:80`` or ``dns:53/UDP``."""
    rest, _, protocol = text.partition("/")
    port_name, _, number = rest.rpartition(":")
    return ServicePort(port_name, Protocol(protocol or "TCP"), int(number))


def service(
    text: str, ips: str = "10.96.0.1", ports: str = "http:80", affinity_timeout_s: int | None = None
) -> Service:
    """A Service; several addresses or ports are separated by blanks."""
    return Service(
        name=name(text),
        cluster_ips=tuple(parse_address(ip) for ip in ips.split()),
        ports=tuple(port(p) for p in ports.split()),
        affinity_timeout_s=affinity_timeout_s,
    )


def endpoint_slice(
    of: str,
    endpoints: str | tuple[Endpoint, ...],
    ports: str = "http:8080",
    *,
    called: str = "",
    trigger_time: str = "",
) -> EndpointSlice:
    """An EndpointSlice of a Service; endpoints are addresses separated by blanks."""
    all_candidates = (
        tuple(Endpoint(parse_address(address)) for address in endpoints.split())
        if isinstance(endpoints, str)
        else endpoints
    )
    return EndpointSlice(
        name=SliceName(name(of).namespace, called or f"{name(of).name}-1"),
        service=name(of),
        family=family_of(all_candidates[0].address) if all_candidates else Family.IPV4,
        ports=tuple(EndpointPort(p.name, p.protocol, p.port) for p in map(port, ports.split())),
        endpoints=all_candidates,
        trigger_time=trigger_time,
    )


def frontend_name(text: str, port_name: str = "http", family: Family = Family.IPV4) -> FrontendName:
    """Parses the Service like `name`; the port and the family have defaults."""
    return FrontendName(ServicePortName(*name(text), port_name), family)


def destination(text: str) -> Destination:
    """Parses ``10.96.0.1:80`` or ``10.96.0.1:53/UDP``."""
    rest, _, protocol = text.partition("/")
    address, _, number = rest.rpartition(":")
    return Destination(parse_address(address), Protocol(protocol or "TCP"), int(number))


def targets(text: str) -> tuple[Target, ...]:
    """Parses endpoints separated by blanks, like ``10.0.0.1:8080 10.0.0.2:8080``."""
    return tuple(Target(Address(t.rpartition(":")[0]), int(t.rpartition(":")[2])) for t in text.split())
