"""Translates Services: addresses, ports and policies."""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault, FaultList, show
from kubeproxy.model import (
    Address,
    Family,
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    TrafficPolicy,
    family_of,
)
from kubeproxy.model import drain_request as drain_annotation
from kubeproxy.model.drain_request import DrainRequests
from kubeproxy.sources.translate.balancing import wishes_of
from kubeproxy.sources.translate.validation import (
    LABEL,
    address_in,
    allowed,
    indexed,
    object_name,
    port_name,
    port_number,
    protocol_in,
    reserved,
)

DEFAULT_AFFINITY_S = 10800
"""The API's default for sessionAffinityConfig.clientIP.timeoutSeconds, three hours."""
MAX_AFFINITY_S = 86400
"""The API's maximum for sessionAffinityConfig.clientIP.timeoutSeconds, one day."""

_PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_DISTRIBUTIONS = ("PreferSameZone", "PreferSameNode", "PreferClose")
_CIDR = re.compile(r"[0-9A-Fa-f.:]+/[0-9]{1,3}")


def service(raw: api_types.Service) -> tuple[Service | None, list[Fault]]:
    """Translate a Service. Return the Service of the model, or None, and the object's faults.

    None without faults means that the Service is not for this proxy: it is headless, an ExternalName, or another
    proxy's. None with faults means that no part of the Service can be served.
    """
    faults: list[Fault] = FaultList()
    meta = raw.metadata or api_types.ObjectMeta()
    spec = raw.spec or api_types.ServiceSpec()
    if not_for_this_proxy(raw):
        return None, faults
    name = object_name(meta, faults, LABEL, 63)
    if spec.type and spec.type not in _TYPES:
        faults.append(Fault("spec.type", f"{show(spec.type)} is unknown; served as ClusterIP. {allowed(_TYPES)}"))

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
    _check_distribution(spec.traffic_distribution, faults)
    local = spec.external_traffic_policy == "Local"
    wishes = wishes_of(meta.annotations, faults)
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
            created=_created(meta.creation_timestamp, faults),
            drain=_drain(meta.annotations, faults),
            scheduler=wishes.scheduler,
            slow_start_s=wishes.slow_start_s,
            remarks=wishes.remarks,
        ),
        faults,
    )


def not_for_this_proxy(raw: api_types.Service) -> str:
    """Return why a valid Service is not for this proxy, or an empty text if it is for this proxy."""
    meta, spec = raw.metadata or api_types.ObjectMeta(), raw.spec or api_types.ServiceSpec()
    if meta.labels is not None and meta.labels.service_proxy_name is not None:
        return f"it belongs to another proxy, {show(meta.labels.service_proxy_name)} (label {_PROXY_LABEL})"
    if spec.type == "ExternalName":
        return "it is an ExternalName: clients resolve another name, so there is nothing to proxy"
    if spec.cluster_ip == "None" or (not spec.cluster_ip and "None" in (spec.cluster_ips or ())):
        return "it is headless: clients connect to its endpoints, so there is nothing to proxy"
    return ""


def _created(text: str | None, faults: list[Fault]) -> int:
    """Return the Service's creation time in Unix seconds, or 0 if it is absent or invalid. In generated manifests it is
    often ``null``."""
    if not text:
        return 0
    try:
        created = datetime.fromisoformat(text)
    except ValueError:
        created = None
    if created is None or created.tzinfo is None:
        faults.append(Fault("metadata.creationTimestamp", f"{show(text)}; {allowed(('RFC 3339',))}; it is ignored"))
        return 0
    return max(0, int(created.timestamp()))


def _drain(annotations: api_types.Annotations | None, faults: list[Fault]) -> DrainRequests | None:
    """Return the drain requests, or None if there are none. Invalid requests become a fault, and are ignored."""
    text = None if annotations is None else annotations.drain_requests
    if not text:
        return None
    try:
        return drain_annotation.decode_requests(text)
    except ValueError as error:
        faults.append(Fault(f"metadata.annotations[{drain_annotation.REQUESTS}]", f"{error}; it is ignored"))
        return None


def _cluster_ips(spec: api_types.ServiceSpec, faults: list[Fault]) -> tuple[Address, ...]:
    """Return the cluster IPs, at most one of each family, in the Service's order. Older servers set only clusterIP."""
    if spec.cluster_ips:
        texts = [(f"spec.clusterIPs[{index}]", text) for index, text in indexed(spec.cluster_ips)]
    else:
        texts = [("spec.clusterIP", spec.cluster_ip)] if spec.cluster_ip else []
    found: dict[Family, Address] = {}
    for path, text in texts:
        address = address_in(text)
        if address is None:
            faults.append(Fault(path, f"{show(text)} is no plain IP address"))
        elif special := reserved(address, loopback=False):
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
    """Return the valid addresses of a field such as spec.externalIPs. Invalid addresses become faults."""
    found: dict[Address, None] = {}
    for index, text in indexed(texts):
        if address := _service_address(f"{path}[{index}]", text, families, faults):
            found[address] = None
    return tuple(found)


def _service_address(path: str, text: str, families: set[Family], faults: list[Fault]) -> Address | None:
    address = address_in(text)
    if address is None:
        faults.append(Fault(path, f"{show(text)} is no plain IP address"))
    elif special := reserved(address, loopback=True):
        faults.append(Fault(path, f"{address} is {special}, which no Service may take"))
    elif families and family_of(address) not in families:
        message = f"{address} is {family_of(address)}, and the Service has no cluster IP of that family"
        faults.append(Fault(path, message, unsupported=True))
    else:
        return address
    return None


def _ingress_addresses(
    status: api_types.ServiceStatus | None, families: set[Family], faults: list[Fault]
) -> tuple[Address, ...]:
    """Return the load balancer addresses that the node has to serve, which are those with ipMode VIP. Host names are
    ignored, because they belong to DNS."""
    if status is None or status.load_balancer is None or not status.load_balancer.ingress:
        return ()
    found: dict[Address, None] = {}
    for index, ingress in indexed(status.load_balancer.ingress):
        path = f"status.loadBalancer.ingress[{index}]"
        if not ingress.ip or ingress.ip_mode == "Proxy":
            continue
        if ingress.ip_mode not in (None, "", "VIP"):
            faults.append(Fault(f"{path}.ipMode", f"{show(ingress.ip_mode)}; {allowed(('VIP', 'Proxy'))}"))
        elif address := _service_address(f"{path}.ip", ingress.ip, families, faults):
            found[address] = None
    return tuple(found)


def _source_ranges(
    spec: api_types.ServiceSpec, annotations: api_types.Annotations | None, faults: list[Fault]
) -> tuple[tuple[str, ...], bool]:
    """Return the canonical CIDRs of loadBalancerSourceRanges, and whether all given ranges are invalid.

    If all are invalid, the load balancer addresses are not served, because without ranges all clients would be let in.
    The field has precedence over the older annotation.
    """
    if spec.load_balancer_source_ranges:
        texts = [(f"spec.loadBalancerSourceRanges[{i}]", text) for i, text in indexed(spec.load_balancer_source_ranges)]
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


def _service_ports(spec: api_types.ServiceSpec, faults: list[Fault]) -> tuple[ServicePort, ...]:
    """Return the ports that can be served. If two ports have the same name, number or node port, only the first is
    served."""
    raw_ports = list(indexed(spec.ports))
    if not raw_ports:
        faults.append(Fault("spec.ports", "missing; allowed: at least one port"))
    ports: list[ServicePort] = []
    names: set[str] = set()
    numbers: set[tuple[Protocol, int]] = set()
    node_ports: set[tuple[Protocol, int]] = set()
    for index, raw in raw_ports:
        path = f"spec.ports[{index}]"
        name = raw.name or ""
        protocol = protocol_in(f"{path}.protocol", raw.protocol, faults)
        good = port_number(f"{path}.port", raw.port, faults) and port_name(f"{path}.name", name, faults)
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
    """Return the node port, or 0 if there is none."""
    if not number:
        return 0
    if not port_number(path, number, faults):
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


def _affinity(spec: api_types.ServiceSpec, faults: list[Fault]) -> int | None:
    if spec.session_affinity in (None, "", "None"):
        return None
    if spec.session_affinity != "ClientIP":
        faults.append(Fault("spec.sessionAffinity", f"{show(spec.session_affinity)}; {allowed(('None', 'ClientIP'))}"))
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
        faults.append(Fault(path, f"{show(text)}; {allowed(TrafficPolicy)}. Cluster is used"))
        return TrafficPolicy.CLUSTER


def _health_check_node_port(spec: api_types.ServiceSpec, faults: list[Fault]) -> int:
    number = spec.health_check_node_port
    if not number or spec.type != "LoadBalancer":
        return 0
    return number if port_number("spec.healthCheckNodePort", number, faults) else 0


def _check_distribution(text: str | None, faults: list[Fault]) -> None:
    # The value matters to the controller that writes the hints of EndpointSlices. A proxy reads only the hints.
    if text and text not in _DISTRIBUTIONS:
        faults.append(Fault("spec.trafficDistribution", f"{show(text)}; {allowed(_DISTRIBUTIONS)}. None is used"))
