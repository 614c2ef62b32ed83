"""Translates EndpointSlices and legacy Endpoints to slices of the model."""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault, FaultList, show
from kubeproxy.model import (
    Address,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    Protocol,
    ServiceName,
    SliceName,
    family_of,
)
from kubeproxy.sources.translate.balancing import weight_of
from kubeproxy.sources.translate.validation import (
    MAX_SUBDOMAIN,
    SUBDOMAIN,
    address_in,
    allowed,
    foreign,
    indexed,
    object_name,
    port_name,
    port_number,
    protocol_in,
    reserved,
)


def endpoint_slice(raw: api_types.EndpointSlice) -> tuple[EndpointSlice | None, list[Fault]]:
    """Translate an EndpointSlice. Return the slice of the model, or None, and the object's faults.

    None without faults means that the slice belongs to no Service of this proxy, because it has no service-name label
    or its Service is headless or another proxy's, or that it has host names (FQDN) instead of addresses. None with
    faults means that no part of the slice can be served.
    """
    faults: list[Fault] = FaultList()
    meta = raw.metadata or api_types.ObjectMeta()
    labels = meta.labels
    if labels is None or not labels.service_name or foreign(labels) or raw.address_type == "FQDN":
        return None, faults
    name = object_name(meta, faults, SUBDOMAIN, MAX_SUBDOMAIN)
    if raw.address_type == "IPv4":
        family = Family.IPV4
    elif raw.address_type == "IPv6":
        family = Family.IPV6
    else:
        faults.append(Fault("addressType", f"{show(raw.address_type)}; {allowed(('IPv4', 'IPv6', 'FQDN'))}"))
        return None, faults
    ports = _endpoint_ports("ports", raw.ports, faults)
    weight = weight_of(meta.annotations, faults)
    endpoints = tuple(_slice_endpoints(raw.endpoints, family, weight, faults))
    if name is None or (raw.endpoints and not endpoints):
        return None, faults
    return (
        EndpointSlice(
            name=SliceName(*name),
            service=ServiceName(name[0], labels.service_name),
            family=family,
            ports=ports,
            endpoints=endpoints,
            trigger_time=(meta.annotations and meta.annotations.trigger_time) or "",
        ),
        faults,
    )


def endpoints(raw: api_types.Endpoints) -> tuple[list[EndpointSlice], list[Fault]]:
    """Translate a legacy Endpoints object. Return a slice for each subset and family, and the object's faults.

    The names of the slices, ``NAME/SUBSET/FAMILY``, are invalid in the API, so they are unique. Endpoints of headless
    Services and of another proxy's Services become no slices.
    """
    faults: list[Fault] = FaultList()
    meta = raw.metadata or api_types.ObjectMeta()
    if meta.labels is not None and foreign(meta.labels):
        return [], faults
    name = object_name(meta, faults, SUBDOMAIN, MAX_SUBDOMAIN)
    if name is None:
        return [], faults
    slices = []
    for index, subset in indexed(raw.subsets):
        path = f"subsets[{index}]"
        ports = _endpoint_ports(f"{path}.ports", subset.ports, faults)
        found: dict[Address, Endpoint] = {}
        _subset_endpoints(f"{path}.addresses", subset.addresses, True, found, faults)
        _subset_endpoints(f"{path}.notReadyAddresses", subset.not_ready_addresses, False, found, faults)
        for family in Family:
            members = tuple(endpoint for endpoint in found.values() if family_of(endpoint.address) is family)
            if members:
                slices.append(
                    EndpointSlice(
                        name=SliceName(name[0], f"{name[1]}/{index}/{family}"),
                        service=ServiceName(*name),
                        family=family,
                        ports=ports,
                        endpoints=members,
                        trigger_time=(meta.annotations and meta.annotations.trigger_time) or "",
                    )
                )
    return slices, faults


def _endpoint_ports(
    path: str, raw_ports: list[api_types.EndpointPort | None] | None, faults: list[Fault]
) -> tuple[EndpointPort, ...]:
    """Return the ports that can be dialed. A null port, which means all ports, is left out, because no service port
    maps to it. SCTP ports are left out without a fault, because the Service has that fault."""
    ports: dict[str, EndpointPort] = {}
    for index, raw in indexed(raw_ports):
        if raw.port is None:
            continue
        here = f"{path}[{index}]"
        name = raw.name or ""
        protocol = protocol_in(f"{here}.protocol", raw.protocol, faults)
        good = port_number(f"{here}.port", raw.port, faults) and port_name(f"{here}.name", name, faults)
        if not good or protocol is None or protocol is Protocol.SCTP:
            continue
        if name in ports:
            faults.append(Fault(f"{here}.name", f"{show(name)} is another port's name too; names must differ"))
        else:
            ports[name] = EndpointPort(name=name, protocol=protocol, port=raw.port)
    return tuple(ports.values())


def _endpoint_address(path: str, text: str | None, faults: list[Fault]) -> Address | None:
    """Return the address of an endpoint, or None and a fault if it is invalid.

    Loopback addresses are accepted. Without a cluster, endpoints on the host itself are common; in a cluster, the API
    server refuses such addresses.
    """
    address = address_in(text)
    if address is None:
        faults.append(Fault(path, f"{show(text)} is no plain IP address; the endpoint is left out"))
    elif special := reserved(address, loopback=False):
        faults.append(Fault(path, f"{address} is {special}; the endpoint is left out"))
    else:
        return address
    return None


def _slice_endpoints(
    raw_endpoints: list[api_types.Endpoint | None] | None, family: Family, weight: int, faults: list[Fault]
) -> Iterator[Endpoint]:
    for index, raw in indexed(raw_endpoints):
        # Only the first address is used, as in kube-proxy, because the API gives the others no meaning.
        text = raw.addresses[0] if raw.addresses else None
        path = f"endpoints[{index}].addresses[0]"
        address = _endpoint_address(path, text, faults)
        if address is None:
            continue
        if family_of(address) is not family:
            message = f"{address} is {family_of(address)} in a slice of {family}; the endpoint is left out"
            faults.append(Fault(path, message))
            continue
        conditions = raw.conditions or _NO_CONDITIONS
        hints = raw.hints
        yield Endpoint(
            address=address,
            ready=conditions.ready is not False,
            serving=conditions.serving is not False,
            terminating=conditions.terminating is True,
            node=intern(raw.node_name or ""),
            zone=intern(raw.zone or ""),
            zone_hints=_hints(hints.for_zones) if hints is not None else _NO_HINTS,
            node_hints=_hints(hints.for_nodes) if hints is not None else _NO_HINTS,
            pod=api_types.pod_of(raw.target_ref),
            weight=weight,
        )


_NO_CONDITIONS = api_types.EndpointConditions()
_NO_HINTS: frozenset[str] = frozenset()


def _hints(raw_hints: list[api_types.Hint | None] | None) -> frozenset[str]:
    return frozenset(intern(hint.name) for _, hint in indexed(raw_hints) if hint.name) if raw_hints else _NO_HINTS


def _subset_endpoints(
    path: str,
    raw_addresses: list[api_types.EndpointAddress | None] | None,
    ready: bool,
    found: dict[Address, Endpoint],
    faults: list[Fault],
) -> None:
    """Add the addresses of a subset to `found`. An address that is already there as ready stays ready."""
    for index, raw in indexed(raw_addresses):
        address = _endpoint_address(f"{path}[{index}].ip", raw.ip, faults)
        if address is not None and address not in found:
            node, pod = intern(raw.node_name or ""), api_types.pod_of(raw.target_ref)
            found[address] = Endpoint(address=address, ready=ready, serving=ready, node=node, pod=pod)
