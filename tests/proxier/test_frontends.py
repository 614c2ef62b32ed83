"""The frontends of a Service: by kind of address, policy and family."""

from __future__ import annotations

import itertools

import pytest

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Endpoint,
    Family,
    Frontend,
    Origin,
    Protocol,
    Scope,
    Service,
    ServicePort,
    Target,
    TrafficPolicy,
    Verdict,
)
from kubeproxy.proxier.frontends import resolve
from kubeproxy.proxier.node import NodeFacts, Preserve
from tests.proxier.builders import endpoint_slice, name, targets

V4, V6 = Family
CLUSTER, LOCAL = TrafficPolicy
FACTS = NodeFacts(name="us", zone="z1", own_addresses=frozenset({Address("192.0.2.1")}))
HERE = Endpoint(Address("10.0.0.1"), node="us")
THERE = Endpoint(Address("10.0.0.2"), node="them")
SLICE = endpoint_slice("web", (HERE, THERE))
SLICE6 = endpoint_slice(
    "web", (Endpoint(Address("fd01::1"), node="us"), Endpoint(Address("fd01::2"), node="them")), called="web-6"
)
BOTH = [SLICE, SLICE6]


def service(
    ips: str = "10.96.0.1",
    *,
    external: str = "",
    balancer: str = "",
    node_port: int = 0,
    internal_policy: TrafficPolicy = CLUSTER,
    external_policy: TrafficPolicy = CLUSTER,
    ranges: tuple[str, ...] = (),
    protocol: Protocol = Protocol.TCP,
    health_check_node_port: int = 0,
) -> Service:
    return Service(
        name=name("web"),
        cluster_ips=tuple(Address(ip) for ip in ips.split()),
        ports=(ServicePort("http", protocol, 80, node_port),),
        internal_policy=internal_policy,
        external_policy=external_policy,
        external_ips=tuple(Address(ip) for ip in external.split()),
        load_balancer_ips=tuple(Address(ip) for ip in balancer.split()),
        load_balancer_source_ranges=ranges,
        health_check_node_port=health_check_node_port,
    )


def at(*addresses: str, port: int = 80, protocol: Protocol = Protocol.TCP) -> frozenset[Destination]:
    return frozenset(Destination(Address(address), protocol, port) for address in addresses)


def by_scope(of: Service, family: Family = V4, facts: NodeFacts = FACTS) -> dict[Scope, Frontend]:
    return {f.name.scope: f for f in resolve(of, BOTH, facts).frontends if f.name.family is family}


def everyone(destinations: frozenset[Destination]) -> dict[Destination, Origin]:
    return dict.fromkeys(destinations, Origin.ANYWHERE)


def on_node(destinations: frozenset[Destination]) -> dict[Destination, Origin]:
    return dict.fromkeys(destinations, Origin.NODE)


NODE_PORT = at(NODE_PORTS[V4], port=30080)
EVERYWHERE, ON_US = targets("10.0.0.1:8080 10.0.0.2:8080"), targets("10.0.0.1:8080")

FULL = {"external": "198.51.100.1", "balancer": "203.0.113.1", "node_port": 30080}
OUTSIDE = at("198.51.100.1", "203.0.113.1") | NODE_PORT
INSIDE = at("10.96.0.1")


@pytest.mark.parametrize(
    ("internal_policy", "external_policy", "taken"),
    [
        (CLUSTER, CLUSTER, {Scope.CLUSTER: everyone(INSIDE | OUTSIDE)}),
        (CLUSTER, LOCAL, {Scope.CLUSTER: everyone(INSIDE) | on_node(OUTSIDE), Scope.EXTERNAL: everyone(OUTSIDE)}),
        (LOCAL, CLUSTER, {Scope.CLUSTER: everyone(OUTSIDE), Scope.LOCAL: everyone(INSIDE)}),
        (
            LOCAL,
            LOCAL,
            {Scope.CLUSTER: on_node(OUTSIDE), Scope.LOCAL: everyone(INSIDE), Scope.EXTERNAL: everyone(OUTSIDE)},
        ),
    ],
)
def test_policies_divide_the_addresses(
    internal_policy: TrafficPolicy,
    external_policy: TrafficPolicy,
    taken: dict[Scope, dict[Destination, Origin]],
) -> None:
    of = service(internal_policy=internal_policy, external_policy=external_policy, **FULL)  # type: ignore[arg-type]
    found = by_scope(of)
    assert {scope: f.destinations for scope, f in found.items()} == taken
    for scope, frontend in found.items():
        assert frontend.endpoints == (EVERYWHERE if scope is Scope.CLUSTER else ON_US)


@pytest.mark.parametrize(
    ("kind", "destinations"),
    [
        ({"external": "198.51.100.1"}, at("198.51.100.1")),
        ({"balancer": "203.0.113.1"}, at("203.0.113.1")),
        ({"node_port": 30080}, NODE_PORT),
    ],
)
def test_each_kind_of_external_address_follows_the_external_policy(
    kind: dict[str, str | int], destinations: frozenset[Destination]
) -> None:
    merged = by_scope(service(**kind))  # type: ignore[arg-type]
    assert {scope: f.destinations for scope, f in merged.items()} == {Scope.CLUSTER: everyone(INSIDE | destinations)}
    apart = by_scope(service(external_policy=LOCAL, **kind))  # type: ignore[arg-type]
    assert apart[Scope.EXTERNAL].destinations == everyone(destinations)
    assert apart[Scope.CLUSTER].destinations == everyone(INSIDE) | on_node(destinations)


def test_a_scope_without_destinations_has_no_frontend() -> None:
    assert by_scope(service(internal_policy=LOCAL)).keys() == {Scope.LOCAL}
    assert by_scope(service(external_policy=LOCAL)).keys() == {Scope.CLUSTER}


@pytest.mark.parametrize(
    ("ips", "external", "families"),
    [
        ("10.96.0.1", "", {V4}),
        ("fd00::1", "", {V6}),
        ("10.96.0.1 fd00::1", "", {V4, V6}),
        ("10.96.0.1", "2001:db8::5", {V4, V6}),
        ("", "2001:db8::5", {V6}),
    ],
)
def test_families_are_those_of_all_addresses(ips: str, external: str, families: set[Family]) -> None:
    found = resolve(service(ips, external=external), BOTH, FACTS).frontends
    assert {f.name.family for f in found} == families
    for frontend in found:
        marks = ":" if frontend.name.family is V6 else "."
        assert all(marks in d.address for d in frontend.destinations)
        assert len(frontend.endpoints) == 2
        assert all(marks in target.address for target in frontend.endpoints)


@pytest.mark.parametrize(
    ("ips", "families"), [("10.96.0.1", [V4]), ("fd00::1", [V6]), ("10.96.0.1 fd00::1", [V4, V6]), ("", [V4, V6])]
)
def test_a_node_port_exists_in_the_families_of_the_cluster_ips(ips: str, families: list[Family]) -> None:
    found = resolve(service(ips, node_port=30080), BOTH, FACTS).frontends
    destinations = {d for f in found for d in f.destinations if d.port == 30080}
    assert destinations == {Destination(NODE_PORTS[family], Protocol.TCP, 30080) for family in families}


def test_the_same_number_for_both_protocols_makes_two_frontends_with_endpoints_of_their_own() -> None:
    both = Service(
        name=name("dns"),
        cluster_ips=(Address("10.96.0.10"),),
        ports=(ServicePort("dns", Protocol.UDP, 53, 30053), ServicePort("dns-tcp", Protocol.TCP, 53, 30053)),
    )
    slices = [endpoint_slice("dns", "10.0.0.1", "dns:5353/UDP dns-tcp:5354")]
    udp, tcp = resolve(both, slices, FACTS).frontends
    assert (udp.protocol, udp.endpoints) == (Protocol.UDP, targets("10.0.0.1:5353"))
    assert (tcp.protocol, tcp.endpoints) == (Protocol.TCP, targets("10.0.0.1:5354"))
    assert udp.destinations.keys() == at("10.96.0.10", port=53, protocol=Protocol.UDP) | at(
        NODE_PORTS[V4], port=30053, protocol=Protocol.UDP
    )
    assert udp.destinations.keys().isdisjoint(tcp.destinations)


# No endpoints.


@pytest.mark.parametrize(
    ("endpoints", "verdicts"),
    [
        ((HERE, THERE), {}),
        ((HERE,), {}),
        ((THERE,), {Scope.LOCAL: Verdict.DROP, Scope.EXTERNAL: Verdict.DROP}),
        ((), {Scope.CLUSTER: Verdict.REFUSE, Scope.LOCAL: Verdict.REFUSE, Scope.EXTERNAL: Verdict.REFUSE}),
        (
            (Endpoint(THERE.address, ready=False, node="them"),),
            {Scope.CLUSTER: Verdict.REFUSE, Scope.LOCAL: Verdict.REFUSE, Scope.EXTERNAL: Verdict.REFUSE},
        ),
        (
            (Endpoint(THERE.address, ready=False, terminating=True, node="them"),),
            {Scope.LOCAL: Verdict.DROP, Scope.EXTERNAL: Verdict.DROP},
        ),
    ],
)
def test_without_endpoints_here_clients_are_dropped_and_without_any_refused(
    endpoints: tuple[Endpoint, ...], verdicts: dict[Scope, Verdict]
) -> None:
    of = service(internal_policy=LOCAL, external_policy=LOCAL, node_port=30080)
    found = resolve(of, [endpoint_slice("web", endpoints)], FACTS).frontends
    assert {f.name.scope: f.when_empty for f in found if not f.endpoints} == verdicts


def test_endpoints_elsewhere_change_nothing_for_a_local_frontend() -> None:
    of = service(internal_policy=LOCAL)
    assert resolve(of, [endpoint_slice("web", (HERE,))], FACTS).frontends == resolve(of, [SLICE], FACTS).frontends


# The client's address.


@pytest.mark.parametrize(
    ("preserve", "preserved"),
    [
        (Preserve.NEVER, {}),
        (Preserve.EXTERNAL_LOCAL, {Scope.EXTERNAL: ON_US}),
        (Preserve.LOCAL, {Scope.EXTERNAL: ON_US, Scope.CLUSTER: ON_US, Scope.LOCAL: ON_US}),
    ],
)
def test_which_endpoints_see_the_client_address(preserve: Preserve, preserved: dict[Scope, tuple[Target, ...]]) -> None:
    of = service(internal_policy=LOCAL, external_policy=LOCAL, node_port=30080)
    found = by_scope(of, facts=NodeFacts(name="us", preserve=preserve))
    assert {scope: tuple(f.preserve) for scope, f in found.items() if f.preserve} == preserved


def test_a_process_of_this_host_never_sees_the_client() -> None:
    slices = [endpoint_slice("web", (Endpoint(Address("192.0.2.1"), node="us"), HERE))]
    frontends = resolve(service(external_policy=LOCAL, node_port=30080), slices, FACTS).frontends
    (external,) = [f for f in frontends if f.name.scope is Scope.EXTERNAL]
    assert external.endpoints == targets("10.0.0.1:8080 192.0.2.1:8080")
    assert external.preserve == set(ON_US)


# Source ranges.

RANGES = ("192.0.2.0/24", "2001:db8::/32", "198.51.100.0/24")


@pytest.mark.parametrize("external_policy", TrafficPolicy)
def test_source_ranges_of_the_right_family_hold_for_load_balancer_addresses_only(
    external_policy: TrafficPolicy,
) -> None:
    of = service(
        "10.96.0.1 fd00::1",
        external="198.51.100.1",
        balancer="203.0.113.1 2001:db8::5",
        node_port=30080,
        ranges=RANGES,
        external_policy=external_policy,
    )
    for family, balanced, ranges in (
        (V4, at("203.0.113.1"), frozenset({"192.0.2.0/24", "198.51.100.0/24"})),
        (V6, at("2001:db8::5"), frozenset({"2001:db8::/32"})),
    ):
        for frontend in by_scope(of, family).values():
            assert (frontend.ranged, frontend.source_ranges) == (balanced, ranges)
            assert balanced <= frontend.destinations.keys()


def test_without_ranges_nothing_is_ranged() -> None:
    (frontend,) = resolve(service(balancer="203.0.113.1"), [SLICE], FACTS).frontends
    assert not frontend.ranged
    assert not frontend.source_ranges


def test_ranges_of_the_other_family_alone_admit_no_client() -> None:
    of = service("10.96.0.1 fd00::1", balancer="203.0.113.1 2001:db8::5", ranges=("192.0.2.0/24",))
    v4, v6 = resolve(of, BOTH, FACTS).frontends
    assert v4.ranged == at("203.0.113.1")
    assert v6.destinations == everyone(at("fd00::1"))
    assert not v6.source_ranges
    assert resolve(of, (), FACTS).unreachable == ("2001:db8::5",)
    assert not resolve(service(balancer="203.0.113.1"), (), FACTS).unreachable


def test_ranges_need_no_load_balancer_address() -> None:
    (frontend,) = resolve(service(ranges=RANGES), [SLICE], FACTS).frontends
    assert not frontend.ranged
    assert not frontend.source_ranges


# Health check node ports.


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
def test_udp_flows_stay_at_each_endpoint_that_serves(protocol: Protocol) -> None:
    in_our_zone = frozenset({"z1"})
    conditions = (
        Endpoint(Address("10.0.0.1"), node="us", zone_hints=in_our_zone),
        Endpoint(Address("10.0.0.2"), node="them", zone_hints=frozenset({"z2"})),
        Endpoint(Address("10.0.0.3"), node="them", zone_hints=in_our_zone),
        Endpoint(Address("10.0.0.4"), ready=False, terminating=True, node="us"),
        Endpoint(Address("10.0.0.5"), ready=False, serving=False, terminating=True, node="us"),
        Endpoint(Address("10.0.0.6"), ready=False, serving=False, node="us"),
    )
    of = service(external_policy=LOCAL, protocol=protocol, **FULL)  # type: ignore[arg-type]
    ports = f"http:8080/{protocol}"
    found = {it.name.scope: it for it in resolve(of, [endpoint_slice("web", conditions, ports)], FACTS).frontends}
    assert found[Scope.CLUSTER].endpoints == targets("10.0.0.1:8080 10.0.0.3:8080")
    assert found[Scope.EXTERNAL].endpoints == targets("10.0.0.1:8080")
    stay = {scope: it.staying for scope, it in found.items()}
    if protocol is Protocol.UDP:
        assert stay[Scope.CLUSTER] == targets("10.0.0.2:8080 10.0.0.4:8080")
        assert stay[Scope.EXTERNAL] == targets("10.0.0.2:8080 10.0.0.3:8080 10.0.0.4:8080")
    else:
        assert set(stay.values()) == {()}, "TCP connections go on by themselves"


def test_health_counts_ready_addresses_here() -> None:
    of = service(external_policy=LOCAL, balancer="203.0.113.1", health_check_node_port=32000)
    leaving = Endpoint(Address("10.0.0.3"), ready=False, terminating=True, node="us")
    other = Endpoint(Address("10.0.0.4"), node="us")
    slices = [
        endpoint_slice("web", (HERE, THERE, leaving), "http:8080 admin:9090"),
        endpoint_slice("web", (HERE, other), called="web-2"),
    ]
    assert resolve(of, slices, FACTS).health == (32000, 2)
    assert resolve(of, [], FACTS).health == (32000, 0)
    assert resolve(of, slices, NodeFacts()).health == (32000, 0)
    assert resolve(service(), slices, FACTS).health is None


def test_health_counts_a_dual_stack_pod_once() -> None:
    of = service("10.96.0.1 fd00::1", external_policy=LOCAL, health_check_node_port=32000)
    assert resolve(of, BOTH, FACTS).health == (32000, 1)


def test_every_frontend_has_a_name_of_its_own() -> None:
    for policies in itertools.product(TrafficPolicy, repeat=2):
        of = service(
            "10.96.0.1 fd00::1",
            external="198.51.100.1 2001:db8::9",
            node_port=30080,
            internal_policy=policies[0],
            external_policy=policies[1],
        )
        names = [f.name for f in resolve(of, BOTH, FACTS).frontends]
        assert len(set(names)) == len(names)
