"""Translation of Services and endpoints: recorded ones, and every wrong value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault
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
)
from kubeproxy.sources import translate
from tests.support.recordings import recording


def recorded_services(version: str) -> dict[str, tuple[Service | None, list[Fault]]]:
    decoded = msgspec.json.decode(recording(f"services-{version}"), type=api_types.ObjectList[api_types.Service])
    return {raw.metadata.name or "": translate.service(raw) for raw in decoded.items or [] if raw.metadata}


def recorded_slices() -> dict[str, tuple[EndpointSlice | None, list[Fault]]]:
    decoded = msgspec.json.decode(recording("endpointslices-1.36"), type=api_types.ObjectList[api_types.EndpointSlice])
    return {raw.metadata.name or "": translate.endpoint_slice(raw) for raw in decoded.items or [] if raw.metadata}


def recorded_endpoints(version: str) -> dict[str, tuple[list[EndpointSlice], list[Fault]]]:
    decoded = msgspec.json.decode(recording(f"endpoints-{version}"), type=api_types.ObjectList[api_types.Endpoints])
    return {raw.metadata.name or "": translate.endpoints(raw) for raw in decoded.items or [] if raw.metadata}


# Recorded objects


HTTP = ServicePort(name="http", protocol=Protocol.TCP, port=80)


def demo(name: str, *addresses: str, ports: tuple[ServicePort, ...] = (HTTP,), **more: Any) -> Service:
    ips = tuple(Address(address) for address in addresses)
    return Service(name=ServiceName("demo", name), cluster_ips=ips, ports=ports, **more)


SERVICES = {
    service.name.name: service
    for service in [
        Service(
            name=ServiceName("default", "kubernetes"),
            cluster_ips=(Address("10.96.0.1"),),
            ports=(ServicePort("https", Protocol.TCP, 443),),
        ),
        demo("deleting", "10.96.1.25"),
        demo("dual", "10.96.1.14", "fd00:96::e"),
        demo("dual-v6-first", "fd00:96::f", "10.96.1.15"),
        demo("external-ips", "10.96.1.10", external_ips=("192.0.2.10", "192.0.2.11")),
        demo("internal-local", "10.96.1.13", internal_policy=TrafficPolicy.LOCAL),
        demo(
            "lb",
            "10.96.1.5",
            ports=(ServicePort("https", Protocol.TCP, 443, 30443),),
            load_balancer_ips=("203.0.113.50", "203.0.113.52"),
            load_balancer_source_ranges=("203.0.113.0/24", "198.51.100.7/32"),
        ),
        demo(
            "lb-local",
            "10.96.1.6",
            ports=(ServicePort("http", Protocol.TCP, 80, 30640),),
            load_balancer_ips=("203.0.113.60",),
            external_policy=TrafficPolicy.LOCAL,
            health_check_node_port=31843,
        ),
        demo("lb-no-node-ports", "10.96.1.7"),
        demo("lb-pending", "10.96.1.9", ports=(ServicePort("http", Protocol.TCP, 80, 30184),)),
        demo(
            "lb-ranges-annotation",
            "10.96.1.8",
            ports=(ServicePort("http", Protocol.TCP, 80, 31862),),
            load_balancer_source_ranges=("192.0.2.0/24", "198.51.100.0/25"),
        ),
        demo("no-selector", "10.96.1.23"),
        demo(
            "node-port",
            "10.96.1.3",
            ports=(ServicePort("http", Protocol.TCP, 80, 30080), ServicePort("https", Protocol.TCP, 443, 31204)),
        ),
        demo(
            "node-port-local",
            "10.96.1.4",
            ports=(ServicePort("http", Protocol.TCP, 80, 30081),),
            external_policy=TrafficPolicy.LOCAL,
        ),
        demo("prefer-close", "10.96.1.19"),
        demo("publish-not-ready", "10.96.1.24"),
        demo("sctp", "10.96.1.22", ports=(ServicePort("diameter", Protocol.SCTP, 3868),)),
        demo("same-node", "10.96.1.18"),
        demo("same-zone", "10.96.1.17"),
        demo("sticky", "10.96.1.11", affinity_timeout_s=600),
        demo("sticky-default-timeout", "10.96.1.12", affinity_timeout_s=10800),
        demo("topology-mode", "10.96.1.20"),
        demo("unnamed-port", "10.96.1.2", ports=(ServicePort("", Protocol.TCP, 8080),)),
        demo("v6-only", "fd00:96::10"),
        demo(
            "web",
            "10.96.1.1",
            ports=(
                HTTP,
                ServicePort("dns-udp", Protocol.UDP, 53),
                ServicePort("dns-tcp", Protocol.TCP, 53),
                ServicePort("metrics", Protocol.TCP, 9090),
            ),
        ),
    ]
}
NOT_OURS = {"external-name", "headless", "headless-labelled", "headless-no-ports", "other-proxy"}


def test_recorded_services() -> None:
    found = recorded_services("1.36")
    assert {name: service for name, (service, _) in found.items() if service is not None} == SERVICES
    assert found.keys() - SERVICES.keys() == NOT_OURS
    assert {name for name, (_, faults) in found.items() if faults} == {"sctp"}
    (fault,) = found["sctp"][1]
    assert fault == Fault("spec.ports[0].protocol", "SCTP is not served; port 3868 (diameter) is left out", True)


def test_recorded_services_of_an_old_server() -> None:
    """No ipFamilies, no ipMode, no internalTrafficPolicy; node ports were allocated again."""
    found = recorded_services("1.20")
    old = {name: service for name, (service, _) in found.items() if service is not None}
    assert {name for name, (_, faults) in found.items() if faults} == {"sctp"}
    for name, service in old.items():
        new = SERVICES[name]
        assert (service.name, service.cluster_ips, service.affinity_timeout_s, service.external_policy) == (
            new.name,
            new.cluster_ips,
            new.affinity_timeout_s,
            new.external_policy,
        )
        assert [(port.name, port.protocol, port.port) for port in service.ports] == [
            (port.name, port.protocol, port.port) for port in new.ports
        ]
    assert old["lb"].load_balancer_ips == ("203.0.113.50", "203.0.113.51", "203.0.113.52")
    assert old.keys() < SERVICES.keys()
    assert found.keys() - old.keys() == NOT_OURS


HTTP_PORT = EndpointPort("http", Protocol.TCP, 8080)


def test_recorded_slices_that_are_not_served() -> None:
    found = recorded_slices()
    left_out = {name for name, (found_slice, _) in found.items() if found_slice is None}
    assert left_out == {"fqdn", "headless-aaaaa", "no-service-label", "other-proxy-aaaaa"}
    assert [faults for _, faults in found.values() if faults] == []


def one(name: str) -> EndpointSlice:
    found, _ = recorded_slices()[name]
    assert found is not None
    return found


def test_conditions() -> None:
    """Ready and serving by default, terminating only if set."""
    assert [(e.ready, e.serving, e.terminating) for e in one("conditions-empty").endpoints] == [(True, True, False)] * 3
    assert [(e.address, e.ready, e.serving, e.terminating) for e in one("web-7k2xp").endpoints] == [
        ("10.1.0.11", True, True, False),
        ("10.1.0.12", False, False, False),
        ("10.1.0.13", False, True, True),
        ("10.1.0.14", False, False, True),
    ]


def test_a_slice_in_full() -> None:
    assert one("same-node-aaaaa") == EndpointSlice(
        name=SliceName("demo", "same-node-aaaaa"),
        service=ServiceName("demo", "same-node"),
        family=Family.IPV4,
        ports=(HTTP_PORT,),
        endpoints=tuple(
            Endpoint(
                address=Address(f"10.1.0.2{number}"),
                node=f"node-{letter}",
                zone=f"zone-{letter}",
                zone_hints=frozenset({f"zone-{letter}"}),
                node_hints=frozenset({f"node-{letter}"}),
            )
            for number, letter in [(1, "a"), (2, "b")]
        ),
    )


def test_parts_of_recorded_slices() -> None:
    assert [endpoint.zone_hints for endpoint in one("topology-mode-aaaaa").endpoints] == [
        {"zone-a", "zone-c"},
        frozenset(),
    ]
    assert [endpoint.address for endpoint in one("many-addresses").endpoints] == ["10.1.0.59"]
    assert one("no-endpoints").endpoints == ()
    for name in ("ports-null", "ports-empty", "null-port", "sctp-aaaaa"):
        assert one(name).ports == ()
    assert one("null-name-port").ports == (EndpointPort("", Protocol.TCP, 8080),)
    assert one("dual-6aaaa").family is Family.IPV6
    assert one("dual-6aaaa").trigger_time == "2026-11-20T23:30:00Z"
    assert [port.protocol for port in one("web-7k2xp").ports] == ["TCP", "UDP", "TCP", "TCP"]


@pytest.mark.parametrize(
    ("target", "pod"),
    [
        ({"kind": "Pod", "name": "web-0", "uid": "u-1"}, "u-1"),
        ({"kind": "Pod", "name": "web-0"}, "web-0"),
        ({"kind": "Pod"}, ""),
        ({"kind": "Node", "name": "node-0", "uid": "u-1"}, ""),
        (None, ""),
    ],
)
def test_pod_of_an_endpoint_is_its_uid_or_its_name(target: object, pod: str) -> None:
    metadata = {"name": "web", "namespace": "demo", "labels": {"kubernetes.io/service-name": "web"}}
    of_slice = {"metadata": metadata, "addressType": "IPv4"}
    listed = msgspec.convert(
        {**of_slice, "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": target}]}, api_types.EndpointSlice
    )
    found, _ = translate.endpoint_slice(listed)
    assert found is not None
    assert [endpoint.pod for endpoint in found.endpoints] == [pod]
    subsets = [{"addresses": [{"ip": "10.0.0.1", "targetRef": target}]}]
    legacy, _ = translate.endpoints(msgspec.convert({"metadata": metadata, "subsets": subsets}, api_types.Endpoints))
    assert [endpoint.pod for endpoint in legacy[0].endpoints] == [pod]


@pytest.mark.parametrize("version", ["1.36", "1.20"])
def test_recorded_endpoints(version: str) -> None:
    found = recorded_endpoints(version)
    assert [faults for _, faults in found.values() if faults] == []
    assert found["headless"] == ([], [])
    assert found["no-subsets"] == ([], [])
    assert [(e.address, e.ready, e.serving) for e in found["only-not-ready"][0][0].endpoints] == [
        ("10.1.0.12", False, False)
    ]
    assert found["v6-only"][0][0].family is Family.IPV6
    first, second = found["web"][0]
    assert first.name != second.name
    assert first.service == second.service == ServiceName("demo", "web")
    assert [(e.address, e.ready, e.node) for e in first.endpoints] == [
        ("10.1.0.11", True, "node-a"),
        ("10.1.0.15", True, "node-b"),
        ("10.1.0.12", False, "node-b"),
    ]
    assert (first.ports[0], second.ports) == (HTTP_PORT, (EndpointPort("http", Protocol.TCP, 8081),))
    assert first.trigger_time == "2026-11-20T23:30:00Z"
    assert found["unnamed-port"][0][0].ports == (EndpointPort("", Protocol.TCP, 8080),)


# Wrong values in a Service: (the change, the fault's path, a part of its message, the rest)


def service_with(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **meta: Any
) -> tuple[Service | None, list[Fault]]:
    base = {"clusterIP": "10.0.0.1", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}
    raw = {
        "metadata": {"name": "x", "namespace": "n"} | meta,
        "spec": base | (spec or {}),
        "status": {"loadBalancer": status},
    }
    return translate.service(msgspec.convert(raw, api_types.Service))


PORT = {"name": "b", "port": 81}


@pytest.mark.parametrize(
    ("port", "path", "message"),
    [
        ({"port": 0}, "port", "0; allowed: 1 to 65535"),
        ({"port": 65536}, "port", "65536; allowed: 1 to 65535"),
        ({"port": -1}, "port", "-1; allowed"),
        ({"port": None}, "port", "missing; allowed"),
        ({"port": 80}, "port", "TCP 80 is another port's number too"),
        ({"name": "a"}, "name", "'a' is another port's name too"),
        ({"name": None}, "name", "missing; required"),
        ({"name": "Web_1"}, "name", "'Web_1'; allowed"),
        ({"name": "n" * 64}, "name", "allowed: up to 63"),
        ({"protocol": "tcp"}, "protocol", "'tcp'; allowed: TCP, UDP, SCTP"),
        ({"protocol": "SCTP"}, "protocol", "SCTP is not served; port 81 (b)"),
    ],
)
def test_a_wrong_port_does_not_affect_the_others(port: dict[str, Any], path: str, message: str) -> None:
    found, faults = service_with({"ports": [{"name": "a", "port": 80}, PORT | port]})
    assert found is not None
    served = [port.name for port in found.ports if port.protocol is not Protocol.SCTP]
    assert served == ["a"]
    (fault,) = faults
    assert fault.path == f"spec.ports[1].{path}"
    assert message in fault.message
    assert fault.unsupported is (port.get("protocol") == "SCTP")


def test_the_same_number_for_tcp_and_udp_is_no_fault() -> None:
    found, faults = service_with({"ports": [{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]})
    assert faults == []
    assert found is not None
    assert len(found.ports) == 2


@pytest.mark.parametrize(
    ("spec", "path", "message", "left"),
    [
        ({"type": "Nodeport"}, "spec.type", "'Nodeport' is unknown", {}),
        ({"sessionAffinity": "Cookie"}, "spec.sessionAffinity", "'Cookie'; allowed", {"affinity_timeout_s": None}),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": -5}}},
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "-5; allowed: 1 to 86400. 10800 is used",
            {"affinity_timeout_s": 10800},
        ),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}},
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "86401",
            {"affinity_timeout_s": 10800},
        ),
        ({"internalTrafficPolicy": "Node"}, "spec.internalTrafficPolicy", "'Node'; allowed: Cluster, Local", {}),
        ({"externalTrafficPolicy": "local"}, "spec.externalTrafficPolicy", "'local'", {}),
        ({"trafficDistribution": "Nearest"}, "spec.trafficDistribution", "'Nearest'", {}),
        (
            {"externalIPs": ["192.0.2.1", "example.com"]},
            "spec.externalIPs[1]",
            "'example.com' is no plain IP address",
            {"external_ips": ("192.0.2.1",)},
        ),
        ({"externalIPs": ["127.0.0.1"]}, "spec.externalIPs[0]", "loopback", {"external_ips": ()}),
        ({"externalIPs": ["0.0.0.0"]}, "spec.externalIPs[0]", "unspecified", {"external_ips": ()}),
        ({"externalIPs": ["224.0.0.1"]}, "spec.externalIPs[0]", "multicast", {"external_ips": ()}),
        ({"externalIPs": ["169.254.169.254"]}, "spec.externalIPs[0]", "link-local", {"external_ips": ()}),
        ({"externalIPs": ["2001:db8::1"]}, "spec.externalIPs[0]", "no cluster IP of that family", {"external_ips": ()}),
        (
            {"clusterIPs": ["10.0.0.1", "10.0.0.2"]},
            "spec.clusterIPs[1]",
            "second IPv4",
            {"cluster_ips": ("10.0.0.1",)},
        ),
        ({"clusterIPs": ["10.0.0.9"]}, "spec.clusterIP", "is not spec.clusterIPs[0]", {"cluster_ips": ("10.0.0.9",)}),
        (
            {"clusterIPs": ["10.0.0.1", "fd00::x"]},
            "spec.clusterIPs[1]",
            "'fd00::x' is no plain IP",
            {"cluster_ips": ("10.0.0.1",)},
        ),
        (
            {"loadBalancerSourceRanges": ["10.0.0.0/8", "10.0.0.0/33"]},
            "spec.loadBalancerSourceRanges[1]",
            "'10.0.0.0/33' is no CIDR",
            {"load_balancer_source_ranges": ("10.0.0.0/8",)},
        ),
        (
            {"ports": [{"port": 80, "nodePort": 30000}]},
            "spec.ports[0].nodePort",
            "of type ClusterIP",
            {"ports": (ServicePort("", Protocol.TCP, 80),)},
        ),
        (
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 70000}]},
            "spec.ports[0].nodePort",
            "70000",
            {"ports": (ServicePort("", Protocol.TCP, 80),)},
        ),
        (
            {
                "type": "NodePort",
                "ports": [{"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30000}],
            },
            "spec.ports[1].nodePort",
            "another port's node port",
            {"ports": (ServicePort("a", Protocol.TCP, 80, 30000), ServicePort("b", Protocol.TCP, 81))},
        ),
        (
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 99999},
            "spec.healthCheckNodePort",
            "99999",
            {"health_check_node_port": 0},
        ),
    ],
)
def test_a_wrong_value_does_not_affect_the_rest(
    spec: dict[str, Any], path: str, message: str, left: dict[str, Any]
) -> None:
    found, faults = service_with(spec)
    assert found is not None
    assert [fault.path for fault in faults] == [path]
    assert message in faults[0].message
    for field, value in left.items():
        assert getattr(found, field) == value


@pytest.mark.parametrize(
    ("spec", "meta", "path"),
    [
        ({"clusterIP": "10.0.0.256"}, {}, "spec.clusterIP"),
        ({"clusterIP": "010.0.0.1"}, {}, "spec.clusterIP"),
        ({"clusterIP": "::ffff:10.0.0.1"}, {}, "spec.clusterIP"),
        ({"clusterIP": "fe80::1%eth0"}, {}, "spec.clusterIP"),
        ({"clusterIP": "224.0.0.1"}, {}, "spec.clusterIP"),
        ({"clusterIP": None}, {}, "spec.clusterIP"),
        ({"ports": None}, {}, "spec.ports"),
        ({"ports": [None]}, {}, "spec.ports"),
        ({}, {"name": "n" * 253}, "metadata.name"),
        ({}, {"name": "a.b"}, "metadata.name"),
        ({}, {"name": None}, "metadata.name"),
        ({}, {"namespace": "N"}, "metadata.namespace"),
    ],
)
def test_a_service_without_any_valid_part_is_refused(spec: dict[str, Any], meta: dict[str, Any], path: str) -> None:
    found, faults = service_with(spec, **meta)
    assert found is None
    assert [fault.path for fault in faults] == [path]


def test_a_long_value_is_shortened() -> None:
    _, faults = service_with(name="n" * 100_000)
    assert len(faults[0].message) < 300
    assert "100000 characters" in faults[0].message


def test_a_service_without_cluster_ip_but_with_another_address() -> None:
    found, faults = service_with({"clusterIP": None, "externalIPs": ["192.0.2.1", "2001:db8::1"]})
    assert faults == []
    assert found is not None
    assert (found.cluster_ips, found.external_ips) == ((), ("192.0.2.1", "2001:db8::1"))


def test_addresses_become_canonical() -> None:
    found, _ = service_with({"clusterIP": "FD00:0:0::1", "externalIPs": ["2001:DB8::0:1", "2001:db8::1"]})
    assert found is not None
    assert (found.cluster_ips, found.external_ips) == (("fd00::1",), ("2001:db8::1",))


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (["10.1.2.3/8"], ("10.0.0.0/8",)),
        ([" 10.0.0.0/8 ", "10.0.0.0/8"], ("10.0.0.0/8",)),
        (["2001:DB8::1/32"], ("2001:db8::/32",)),
    ],
)
def test_source_ranges_become_canonical(ranges: list[str], expected: tuple[str, ...]) -> None:
    found, faults = service_with({"loadBalancerSourceRanges": ranges})
    assert faults == []
    assert found is not None
    assert found.load_balancer_source_ranges == expected


@pytest.mark.parametrize("wrong", ["10.0.0.1", "10.0.0.0/255.0.0.0", "10.0.0/8", "", "all"])
def test_without_a_valid_source_range_the_load_balancer_address_is_not_served(wrong: str) -> None:
    """An empty list would admit all clients."""
    found, faults = service_with(
        {"type": "LoadBalancer", "loadBalancerSourceRanges": [wrong]}, {"ingress": [{"ip": "192.0.2.1"}]}
    )
    assert [fault.path for fault in faults] == ["spec.loadBalancerSourceRanges[0]"]
    assert found is not None
    assert found.load_balancer_ips == ()


def test_the_field_overrides_the_annotation() -> None:
    annotations = {"service.beta.kubernetes.io/load-balancer-source-ranges": "192.0.2.0/24"}
    found, _ = service_with({"loadBalancerSourceRanges": ["10.0.0.0/8"]}, annotations=annotations)
    assert found is not None
    assert found.load_balancer_source_ranges == ("10.0.0.0/8",)


@pytest.mark.parametrize(
    ("ingress", "ips", "path"),
    [
        ({"ip": "192.0.2.1", "ipMode": "VIP"}, ("192.0.2.1",), None),
        ({"ip": "192.0.2.1", "ipMode": "Proxy"}, (), None),
        ({"hostname": "lb.example.com"}, (), None),
        ({"ip": "192.0.2.1", "ipMode": "Vip"}, (), "status.loadBalancer.ingress[0].ipMode"),
        ({"ip": "lb"}, (), "status.loadBalancer.ingress[0].ip"),
        ({"ip": "2001:db8::1"}, (), "status.loadBalancer.ingress[0].ip"),
    ],
)
def test_ingress(ingress: dict[str, Any], ips: tuple[str, ...], path: str | None) -> None:
    found, faults = service_with({"type": "LoadBalancer"}, {"ingress": [ingress]})
    assert found is not None
    assert found.load_balancer_ips == ips
    assert [fault.path for fault in faults] == ([path] if path else [])


def test_services_of_other_proxies_have_no_faults() -> None:
    assert service_with({"clusterIP": "None", "ports": [{"port": 0}]}) == (None, [])
    assert service_with({"clusterIP": None, "clusterIPs": ["None"]}) == (None, [])
    assert service_with({"type": "ExternalName", "clusterIP": "x"}) == (None, [])
    assert service_with({"ports": None}, labels={"service.kubernetes.io/service-proxy-name": ""}) == (None, [])


# Wrong values in endpoints


def slice_with(**fields: Any) -> tuple[EndpointSlice | None, list[Fault]]:
    base: dict[str, Any] = {
        "metadata": {"name": "x", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"name": "a", "port": 80}],
    }
    return translate.endpoint_slice(msgspec.convert(base | fields, api_types.EndpointSlice))


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({"addresses": ["fd00::1"]}, "fd00::1 is IPv6 in a slice of IPv4"),
        ({"addresses": ["web.example.com"]}, "'web.example.com' is no plain IP address"),
        ({"addresses": []}, "missing"),
        ({"addresses": None}, "missing"),
        ({"addresses": [None]}, "missing"),
        ({"addresses": ["0.0.0.0"]}, "unspecified"),
        ({"addresses": ["169.254.1.1"]}, "link-local"),
        ({"addresses": ["255.255.255.255"]}, "broadcast"),
    ],
)
def test_a_wrong_endpoint_does_not_affect_the_others(endpoint: dict[str, Any], message: str) -> None:
    found, faults = slice_with(endpoints=[{"addresses": ["10.0.0.1"]}, endpoint, {"addresses": ["10.0.0.3"]}])
    assert found is not None
    assert [endpoint.address for endpoint in found.endpoints] == ["10.0.0.1", "10.0.0.3"]
    (fault,) = faults
    assert fault.path == "endpoints[1].addresses[0]"
    assert message in fault.message


@pytest.mark.parametrize(
    ("port", "path"),
    [
        ({"name": "b", "port": 0}, "ports[1].port"),
        ({"name": "b", "port": 65536}, "ports[1].port"),
        ({"name": "a", "port": 81}, "ports[1].name"),
        ({"name": "B", "port": 81}, "ports[1].name"),
        ({"name": "b", "port": 81, "protocol": "ICMP"}, "ports[1].protocol"),
    ],
)
def test_a_wrong_endpoint_port_does_not_affect_the_others(port: dict[str, Any], path: str) -> None:
    found, faults = slice_with(ports=[{"name": "a", "port": 80}, port])
    assert found is not None
    assert found.ports == (EndpointPort("a", Protocol.TCP, 80),)
    assert [fault.path for fault in faults] == [path]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"addressType": "IPv5"}, "addressType"),
        ({"addressType": None}, "addressType"),
        ({"endpoints": [{"addresses": ["nowhere"]}]}, "endpoints[0].addresses[0]"),
        (
            {"metadata": {"name": "n" * 254, "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}}},
            "metadata.name",
        ),
    ],
)
def test_a_slice_without_any_valid_part_is_refused(fields: dict[str, Any], path: str) -> None:
    found, faults = slice_with(**fields)
    assert found is None
    assert [fault.path for fault in faults] == [path]


def test_a_slice_name_of_253_characters() -> None:
    meta = {"name": "n" * 253, "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}}
    found, faults = slice_with(metadata=meta)
    assert faults == []
    assert found is not None
    assert found.name.name == "n" * 253


def test_a_thousand_endpoints() -> None:
    addresses = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(1000)]
    found, faults = slice_with(endpoints=[{"addresses": [address]} for address in addresses])
    assert faults == []
    assert found is not None
    assert [endpoint.address for endpoint in found.endpoints] == addresses


def test_nulls_in_lists_are_ignored() -> None:
    found, faults = slice_with(endpoints=[None, {"addresses": ["10.0.0.1"]}], ports=[None, {"port": 80}])
    assert faults == []
    assert found is not None
    assert len(found.endpoints) == len(found.ports) == 1


def test_a_loopback_endpoint_is_accepted() -> None:
    found, faults = slice_with(endpoints=[{"addresses": ["127.0.0.1"]}])
    assert faults == []
    assert found is not None


def test_endpoints_of_both_families_and_in_both_lists() -> None:
    raw = {
        "metadata": {"name": "x", "namespace": "n"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "notReadyAddresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "bad"}],
                "ports": [{"port": 80}],
            }
        ],
    }
    slices, faults = translate.endpoints(msgspec.convert(raw, api_types.Endpoints))
    assert [(s.family, [(e.address, e.ready) for e in s.endpoints]) for s in slices] == [
        (Family.IPV4, [("10.0.0.1", True), ("10.0.0.2", False)]),
        (Family.IPV6, [("fd00::1", True)]),
    ]
    assert all("/" in found.name.name for found in slices)
    assert [fault.path for fault in faults] == ["subsets[0].notReadyAddresses[2].ip"]


@pytest.mark.parametrize(
    ("text", "created", "faulty"),
    [
        ("2026-11-20T23:30:00Z", 1795217400, False),
        ("2026-11-21T00:30:00.5+01:00", 1795217400, False),
        (None, 0, False),
        ("", 0, False),
        ("1969-01-01T00:00:00Z", 0, False),
        ("yesterday", 0, True),
        ("2026-11-20T23:30:00", 0, True),
    ],
)
def test_the_age_of_a_service(text: str | None, created: int, faulty: bool) -> None:
    found, faults = service_with(creationTimestamp=text)
    assert found is not None
    assert found.created == created
    assert [fault.path for fault in faults] == (["metadata.creationTimestamp"] if faulty else [])
