"""Wire objects to the model, with the API server's validation.

Pure. One wrong thing never takes the rest of an object with it: what is faulty is left out and named, what is useful
is served. A fault says where (`path`) and what was found beside what is allowed (`message`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import TypeVar

from kubeproxy.model import (
    Address,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    SliceName,
    TrafficPolicy,
    family_of,
    parse_address,
)
from kubeproxy.sources import wire

T = TypeVar("T")

DEFAULT_AFFINITY_S = 10800
"""Three hours, the API's default for sessionAffinityConfig.clientIP.timeoutSeconds."""
MAX_AFFINITY_S = 86400
"""One day, the API's upper bound."""

_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_DISTRIBUTIONS = ("PreferSameZone", "PreferSameNode", "PreferClose")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_SUBDOMAIN = 253
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")
_CIDR = re.compile(r"[0-9A-Fa-f.:]+/[0-9]{1,3}")
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in an object that is not served."""

    path: str
    """The field, like ``spec.ports[1].port``."""
    message: str
    """What was found, what is allowed."""
    unsupported: bool = False
    """An API server would have taken it, only this proxy does not serve it (SCTP, an address of a family that the
    Service has no cluster IP of): no mistake of the object's author."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def service(raw: wire.Service) -> tuple[Service | None, list[Fault]]:
    """A Service as the model has it. None without faults: not ours to serve (headless, ExternalName, another proxy's);
    None with faults: nothing in it could be served."""
    faults: list[Fault] = []
    meta = raw.metadata or wire.ObjectMeta()
    spec = raw.spec or wire.ServiceSpec()
    if (meta.labels is not None and meta.labels.service_proxy_name is not None) or spec.type == "ExternalName":
        return None, faults
    if spec.cluster_ip == "None" or (not spec.cluster_ip and "None" in (spec.cluster_ips or ())):
        return None, faults
    name = _name(meta, faults, _LABEL, 63)
    if spec.type and spec.type not in _TYPES:
        faults.append(Fault("spec.type", f"{show(spec.type)} is unknown; served as ClusterIP. {_allowed(_TYPES)}"))

    cluster_ips = _cluster_ips(spec, faults)
    families = {family_of(address) for address in cluster_ips}
    external_ips = _service_addresses("spec.externalIPs", spec.external_ips, families, faults)
    load_balancer_ips = _ingress_addresses(raw.status, families, faults)
    source_ranges, unusable = _source_ranges(spec, meta.annotations, faults)
    if unusable:
        load_balancer_ips = ()
    ports = _service_ports(spec, faults)
    reachable = cluster_ips or external_ips or load_balancer_ips or any(port.node_port for port in ports)
    if not reachable and not spec.cluster_ip and not spec.cluster_ips:
        faults.append(Fault("spec.clusterIP", "missing: the Service has no address at all, and nothing allocates one"))
    if name is None or not ports or not reachable:
        return None, faults
    local = spec.external_traffic_policy == "Local"
    return (
        Service(
            name=ServiceName(*name),
            cluster_ips=cluster_ips,
            ports=ports,
            affinity_timeout_s=_affinity(spec, faults),
            internal_policy=_policy("spec.internalTrafficPolicy", spec.internal_traffic_policy, faults),
            external_policy=_policy("spec.externalTrafficPolicy", spec.external_traffic_policy, faults),
            external_ips=external_ips,
            load_balancer_ips=load_balancer_ips,
            load_balancer_source_ranges=source_ranges,
            health_check_node_port=_health_check_node_port(spec, faults) if local else 0,
            traffic_distribution=_distribution(spec.traffic_distribution, faults),
        ),
        faults,
    )


def endpoint_slice(raw: wire.EndpointSlice) -> tuple[EndpointSlice | None, list[Fault]]:
    """A slice as the model has it. None without faults: it belongs to no Service of ours (no service-name label,
    headless, another proxy's) or holds names instead of addresses (FQDN); None with faults: nothing in it could be
    served."""
    faults: list[Fault] = []
    meta = raw.metadata or wire.ObjectMeta()
    labels = meta.labels
    if labels is None or not labels.service_name or _foreign(labels) or raw.address_type == "FQDN":
        return None, faults
    name = _name(meta, faults, _SUBDOMAIN, _MAX_SUBDOMAIN)
    if raw.address_type == "IPv4":
        family = Family.IPV4
    elif raw.address_type == "IPv6":
        family = Family.IPV6
    else:
        faults.append(Fault("addressType", f"{show(raw.address_type)}; {_allowed(('IPv4', 'IPv6', 'FQDN'))}"))
        return None, faults
    ports = _endpoint_ports("ports", raw.ports, faults)
    endpoints = tuple(_slice_endpoints(raw.endpoints, family, faults))
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


def endpoints(raw: wire.Endpoints) -> tuple[list[EndpointSlice], list[Fault]]:
    """A legacy Endpoints object as slices, one per subset and family, named ``NAME/SUBSET/FAMILY``: a name that no API
    object can have. Empty for those of headless Services and of another proxy's."""
    faults: list[Fault] = []
    meta = raw.metadata or wire.ObjectMeta()
    if meta.labels is not None and _foreign(meta.labels):
        return [], faults
    name = _name(meta, faults, _SUBDOMAIN, _MAX_SUBDOMAIN)
    if name is None:
        return [], faults
    slices = []
    for index, subset in _items(raw.subsets):
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


# Parts of both


def _foreign(labels: wire.Labels) -> bool:
    return labels.headless is not None or labels.service_proxy_name is not None


def _items(items: list[T | None] | None) -> Iterator[tuple[int, T]]:
    """The items with their indices, without the nulls: a null in a list says nothing."""
    return ((index, item) for index, item in enumerate(items or ()) if item is not None)


def show(found: object) -> str:
    """What was found, short enough for a log line."""
    if found is None:
        return "missing"
    text = repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(str(found))} characters)"


def _allowed(values: Iterable[str]) -> str:
    return f"allowed: {', '.join(values)}"


def _name(meta: wire.ObjectMeta, faults: list[Fault], pattern: re.Pattern[str], longest: int) -> tuple[str, str] | None:
    """Namespace and name, or None where they cannot be an object's."""
    namespace, name = meta.namespace or "", meta.name or ""
    good = True
    if not _LABEL.fullmatch(namespace):
        faults.append(Fault("metadata.namespace", f"{show(meta.namespace)}; {_LABEL_RULE}"))
        good = False
    if len(name) > longest or not pattern.fullmatch(name):
        rule = _LABEL_RULE if pattern is _LABEL else _SUBDOMAIN_RULE
        faults.append(Fault("metadata.name", f"{show(meta.name)}; {rule}"))
        good = False
    return (namespace, name) if good else None


_LABEL_RULE = "allowed: up to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit"
_SUBDOMAIN_RULE = (
    "allowed: up to 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
)


def _address(text: str | None) -> Address | None:
    """The canonical address, None where there is none in `text`."""
    if text is None:
        return None
    if _CANONICAL_IPV4.fullmatch(text):  # nearly all of them, and twenty times as fast as ipaddress
        return Address(text)
    try:
        return parse_address(text)
    except ValueError:
        return None


def _special(address: Address, *, loopback: bool) -> str:
    """Why traffic for this address can belong to no Service; empty if it can."""
    if address.startswith(_ORDINARY_BEGINNINGS):
        return ""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return "the unspecified address"
    if parsed.is_multicast or address == "255.255.255.255":
        return "a multicast or broadcast address"
    if parsed.is_link_local:
        return "a link-local address"
    return "a loopback address" if loopback and parsed.is_loopback else ""


_ORDINARY_BEGINNINGS = ("10.", "172.", "192.168.", "fd", "2001:")
"""Most addresses in use; a shortcut only."""


def _port_number(path: str, number: int | None, faults: list[Fault]) -> bool:
    if number is not None and 1 <= number <= 65535:
        return True
    faults.append(Fault(path, f"{show(number)}; allowed: 1 to 65535"))
    return False


def _protocol(path: str, text: str | None, faults: list[Fault]) -> Protocol | None:
    try:
        return Protocol(text or "TCP")
    except ValueError:
        faults.append(Fault(path, f"{show(text)}; {_allowed(Protocol)}"))
        return None


def _port_name(path: str, name: str, faults: list[Fault]) -> bool:
    if not name or _LABEL.fullmatch(name):
        return True
    faults.append(Fault(path, f"{show(name)}; {_LABEL_RULE}"))
    return False


# Parts of a Service


def _cluster_ips(spec: wire.ServiceSpec, faults: list[Fault]) -> tuple[Address, ...]:
    """At most one address per family, in the Service's order. Older servers fill in clusterIP alone."""
    if spec.cluster_ips:
        texts = [(f"spec.clusterIPs[{index}]", text) for index, text in _items(spec.cluster_ips)]
    else:
        texts = [("spec.clusterIP", spec.cluster_ip)] if spec.cluster_ip else []
    found: dict[Family, Address] = {}
    for path, text in texts:
        address = _address(text)
        if address is None:
            faults.append(Fault(path, f"{show(text)} is no plain IP address"))
        elif special := _special(address, loopback=False):
            faults.append(Fault(path, f"{address} is {special}, no cluster IP"))
        elif (family := family_of(address)) in found:
            faults.append(Fault(path, f"{address} is a second {family} address; allowed: one per family"))
        else:
            found[family] = address
    if spec.cluster_ip and spec.cluster_ips and spec.cluster_ips[0] != spec.cluster_ip:
        faults.append(
            Fault("spec.clusterIP", f"{show(spec.cluster_ip)} is not spec.clusterIPs[0] ({show(spec.cluster_ips[0])})")
        )
    return tuple(found.values())


def _service_addresses(
    path: str, texts: list[str | None] | None, families: set[Family], faults: list[Fault]
) -> tuple[Address, ...]:
    """Addresses from outside the cluster; wrong and doubtful ones left out."""
    found: dict[Address, None] = {}
    for index, text in _items(texts):
        if address := _service_address(f"{path}[{index}]", text, families, faults):
            found[address] = None
    return tuple(found)


def _service_address(path: str, text: str, families: set[Family], faults: list[Fault]) -> Address | None:
    address = _address(text)
    if address is None:
        faults.append(Fault(path, f"{show(text)} is no plain IP address"))
    elif special := _special(address, loopback=True):
        faults.append(Fault(path, f"{address} is {special}, which no Service may take"))
    elif families and family_of(address) not in families:
        message = f"{address} is {family_of(address)}, and the Service has no cluster IP of that family"
        faults.append(Fault(path, message, unsupported=True))
    else:
        return address
    return None


def _ingress_addresses(
    status: wire.ServiceStatus | None, families: set[Family], faults: list[Fault]
) -> tuple[Address, ...]:
    """The load balancer's addresses that the node captures: those of mode VIP. Host names are for DNS."""
    if status is None or status.load_balancer is None or not status.load_balancer.ingress:
        return ()
    found: dict[Address, None] = {}
    for index, ingress in _items(status.load_balancer.ingress):
        path = f"status.loadBalancer.ingress[{index}]"
        if not ingress.ip or ingress.ip_mode == "Proxy":
            continue
        if ingress.ip_mode not in (None, "", "VIP"):
            faults.append(Fault(f"{path}.ipMode", f"{show(ingress.ip_mode)}; {_allowed(('VIP', 'Proxy'))}"))
        elif address := _service_address(f"{path}.ip", ingress.ip, families, faults):
            found[address] = None
    return tuple(found)


def _source_ranges(
    spec: wire.ServiceSpec, annotations: wire.Annotations | None, faults: list[Fault]
) -> tuple[tuple[str, ...], bool]:
    """The canonical CIDRs, and whether ranges were given of which none is usable: then nobody may come in through the
    load balancer, for an empty list would mean everybody. The field wins over the older annotation."""
    if spec.load_balancer_source_ranges:
        texts = [(f"spec.loadBalancerSourceRanges[{i}]", text) for i, text in _items(spec.load_balancer_source_ranges)]
    elif annotations is not None and (annotations.source_ranges or "").strip():
        path = 'metadata.annotations["service.beta.kubernetes.io/load-balancer-source-ranges"]'
        texts = [(path, text) for text in (annotations.source_ranges or "").split(",")]
    else:
        return (), False
    found: dict[str, None] = {}
    for path, text in texts:
        try:
            if not _CIDR.fullmatch(text.strip()):
                raise ValueError
            found[str(ipaddress.ip_network(text.strip(), strict=False))] = None
        except ValueError:
            faults.append(Fault(path, f"{show(text)} is no CIDR; allowed: like 192.0.2.0/24 or 2001:db8::/32"))
    return tuple(found), not found


def _service_ports(spec: wire.ServiceSpec, faults: list[Fault]) -> tuple[ServicePort, ...]:
    """The ports that can be served. Of two that claim the same name, number or node port, the first has it."""
    raw_ports = list(_items(spec.ports))
    if not raw_ports:
        faults.append(Fault("spec.ports", "missing; allowed: at least one port"))
    ports: list[ServicePort] = []
    names: set[str] = set()
    numbers: set[tuple[Protocol, int]] = set()
    node_ports: set[tuple[Protocol, int]] = set()
    for index, raw in raw_ports:
        path = f"spec.ports[{index}]"
        name = raw.name or ""
        protocol = _protocol(f"{path}.protocol", raw.protocol, faults)
        good = _port_number(f"{path}.port", raw.port, faults) and _port_name(f"{path}.name", name, faults)
        if not good or protocol is None or raw.port is None:
            continue
        if not name and len(raw_ports) > 1:
            faults.append(Fault(f"{path}.name", "missing; required where a Service has several ports"))
        elif name in names:
            faults.append(Fault(f"{path}.name", f"{show(name)} is another port's name too; names must differ"))
        elif (protocol, raw.port) in numbers:
            faults.append(Fault(f"{path}.port", f"{protocol} {raw.port} is another port's number too"))
        else:
            names.add(name)
            numbers.add((protocol, raw.port))
            if protocol is Protocol.SCTP:
                message = f"SCTP is not served; port {raw.port}{f' ({name})' if name else ''} is left out"
                faults.append(Fault(f"{path}.protocol", message, unsupported=True))
            else:
                node_port = _node_port(f"{path}.nodePort", raw.node_port, spec.type, protocol, node_ports, faults)
                ports.append(ServicePort(name=name, protocol=protocol, port=raw.port, node_port=node_port))
    return tuple(ports)


def _node_port(
    path: str,
    number: int | None,
    service_type: str | None,
    protocol: Protocol,
    taken: set[tuple[Protocol, int]],
    faults: list[Fault],
) -> int:
    """The node port, 0 for none."""
    if not number:
        return 0
    if not _port_number(path, number, faults):
        return 0
    if service_type not in ("NodePort", "LoadBalancer"):
        message = f"{number} on a Service of type {service_type or 'ClusterIP'}; allowed: on NodePort and LoadBalancer"
        faults.append(Fault(path, message))
        return 0
    if (protocol, number) in taken:
        faults.append(Fault(path, f"{protocol} {number} is another port's node port too"))
        return 0
    taken.add((protocol, number))
    return number


def _affinity(spec: wire.ServiceSpec, faults: list[Fault]) -> int | None:
    if spec.session_affinity in (None, "", "None"):
        return None
    if spec.session_affinity != "ClientIP":
        faults.append(Fault("spec.sessionAffinity", f"{show(spec.session_affinity)}; {_allowed(('None', 'ClientIP'))}"))
        return None
    config = spec.session_affinity_config
    timeout_s = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    if timeout_s is None:
        return DEFAULT_AFFINITY_S
    if 1 <= timeout_s <= MAX_AFFINITY_S:
        return timeout_s
    path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    faults.append(Fault(path, f"{timeout_s}; allowed: 1 to {MAX_AFFINITY_S}. {DEFAULT_AFFINITY_S} is used"))
    return DEFAULT_AFFINITY_S


def _policy(path: str, text: str | None, faults: list[Fault]) -> TrafficPolicy:
    try:
        return TrafficPolicy(text or "Cluster")
    except ValueError:
        faults.append(Fault(path, f"{show(text)}; {_allowed(TrafficPolicy)}. Cluster is used"))
        return TrafficPolicy.CLUSTER


def _health_check_node_port(spec: wire.ServiceSpec, faults: list[Fault]) -> int:
    number = spec.health_check_node_port
    if not number or spec.type != "LoadBalancer":
        return 0
    return number if _port_number("spec.healthCheckNodePort", number, faults) else 0


def _distribution(text: str | None, faults: list[Fault]) -> str:
    if not text or text in _DISTRIBUTIONS:
        return text or ""
    faults.append(Fault("spec.trafficDistribution", f"{show(text)}; {_allowed(_DISTRIBUTIONS)}. None is used"))
    return ""


# Parts of EndpointSlices and Endpoints


def _endpoint_ports(
    path: str, raw_ports: list[wire.EndpointPort | None] | None, faults: list[Fault]
) -> tuple[EndpointPort, ...]:
    """The ports that can be dialed. A null port means all ports, which no service port can be mapped to; SCTP is the
    Service's fault to tell."""
    ports: dict[str, EndpointPort] = {}
    for index, raw in _items(raw_ports):
        if raw.port is None:
            continue
        here = f"{path}[{index}]"
        name = raw.name or ""
        protocol = _protocol(f"{here}.protocol", raw.protocol, faults)
        good = _port_number(f"{here}.port", raw.port, faults) and _port_name(f"{here}.name", name, faults)
        if not good or protocol is None or protocol is Protocol.SCTP:
            continue
        if name in ports:
            faults.append(Fault(f"{here}.name", f"{show(name)} is another port's name too; names must differ"))
        else:
            ports[name] = EndpointPort(name=name, protocol=protocol, port=raw.port)
    return tuple(ports.values())


def _endpoint_address(path: str, text: str | None, faults: list[Fault]) -> Address | None:
    """An address to dial. A loopback address is taken though an API server refuses it: on a host without a cluster a
    backend on the host itself is ordinary, and in a cluster none gets past the API server."""
    address = _address(text)
    if address is None:
        faults.append(Fault(path, f"{show(text)} is no plain IP address; the endpoint is left out"))
    elif special := _special(address, loopback=False):
        faults.append(Fault(path, f"{address} is {special}; the endpoint is left out"))
    else:
        return address
    return None


def _slice_endpoints(
    raw_endpoints: list[wire.Endpoint | None] | None, family: Family, faults: list[Fault]
) -> Iterator[Endpoint]:
    for index, raw in _items(raw_endpoints):
        # Only the first address counts: the API gives the others no meaning, and kube-proxy never used them.
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
        )


_NO_CONDITIONS = wire.EndpointConditions()
_NO_HINTS: frozenset[str] = frozenset()


def _hints(raw_hints: list[wire.Hint | None] | None) -> frozenset[str]:
    return frozenset(intern(hint.name) for _, hint in _items(raw_hints) if hint.name) if raw_hints else _NO_HINTS


def _subset_endpoints(
    path: str,
    raw_addresses: list[wire.EndpointAddress | None] | None,
    ready: bool,
    found: dict[Address, Endpoint],
    faults: list[Fault],
) -> None:
    """Add a subset's addresses to those found; one that is listed as ready stays ready."""
    for index, raw in _items(raw_addresses):
        address = _endpoint_address(f"{path}[{index}].ip", raw.ip, faults)
        if address is not None and address not in found:
            found[address] = Endpoint(address=address, ready=ready, serving=ready, node=intern(raw.node_name or ""))
