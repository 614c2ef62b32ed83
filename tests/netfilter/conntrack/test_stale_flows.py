"""Flows that contradict the rules: by example, and against a model that decides each flow as if it began now."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Origin, Protocol, Target, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import messages as wire
from kubeproxy.netfilter.conntrack.stale_flows import NoConntrack, TrackedFlow, Transition
from kubeproxy.netfilter.netlink.messages import NLMSG_ERROR, Message, parse
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet, Spread, part
from tests.support.doubles.conntrack import FakeConntrack
from tests.support.rule_changes import change_between, like
from tests.support.traffic import from_anywhere, from_node, of

VIP, VIP6, OTHER_VIP = Address("10.96.0.10"), Address("fd96::a"), Address("10.96.0.11")
NODE, NODE6, LOOPBACK, LOOPBACK6 = Address("10.2.0.1"), Address("fd00:2::1"), Address("127.0.0.1"), Address("::1")
SECOND_NODE_ADDRESS, OLD_NODE_ADDRESS = Address("10.3.0.1"), Address("10.2.0.77")
CLIENT, CLIENT6, POD, ELSEWHERE = Address("10.2.0.2"), Address("fd00:2::2"), Address("10.3.0.2"), Address("192.0.2.9")
LOCAL = frozenset({NODE, NODE6, LOOPBACK, LOOPBACK6, SECOND_NODE_ADDRESS})
LANDING = {Family.IPV4: NODE, Family.IPV6: NODE6}


def udp(address: str, port: int = 53) -> Destination:
    return Destination(Address(address), Protocol.UDP, port)


def tcp(address: str, port: int = 53) -> Destination:
    return Destination(Address(address), Protocol.TCP, port)


def ports(*numbers: int) -> set[ProxyPort]:
    return {ProxyPort(Protocol.UDP, number) for number in numbers}


def rules(redirects: Mapping[Destination, int], own: Mapping[Destination, int] | None = None, **more: Any) -> RuleSet:
    guarded = {ProxyPort(key.protocol, port) for key, port in redirects.items()}
    every = {**from_anywhere(redirects), **from_node(own or {})}
    return replace(RuleSet(redirects=every, proxy_ports=guarded, landing=LANDING), **more)


def flow(to: Address, target: Address, target_port: int, *, port: int = 53, source: Address = CLIENT) -> TrackedFlow:
    return TrackedFlow(source, 40000, to, port, target, target_port)


def is_stale(it: TrackedFlow, before: RuleSet | None, now: RuleSet) -> bool:
    return Transition(before, now).stale([it], local=LOCAL) == [it]


SERVED = rules({udp(VIP): 7001, udp(VIP6): 7001})
NOTHING = RuleSet()
NODE_PORT = rules({udp(NODE_PORTS[Family.IPV4], 30053): 7001}, node_addresses=frozenset({NODE, LOOPBACK}))
OWN = rules(
    {udp(VIP): 7001},
    own={udp(VIP): 7002},
    internal_sources=frozenset({"10.3.0.0/16", "fd03::/16"}),
    proxy_ports=ports(7001, 7002),
)
UPLINKED = replace(OWN, uplinks=frozenset({"eth0"}))
RANGED = rules({udp(VIP): 7001}, allowed_sources={udp(VIP): frozenset({"10.2.0.0/30", "fd00::/8"})})


def led_to(*endpoints: Address) -> RuleSet:
    """The rules of a Service that the kernel leads to these endpoints, port 5353."""
    targets = tuple(Target(endpoint, 5353) for endpoint in endpoints)
    return replace(SERVED, spreads={Traffic(udp(VIP)): Spread("dns", targets, targets)})


IN_USER_SPACE = replace(SERVED, spreads={Traffic(udp(VIP)): Spread("dns", (), (Target(POD, 5353),))})


@pytest.mark.parametrize(
    ("why", "it", "before", "now", "expected"),
    [
        ("to an endpoint", flow(VIP, POD, 5353), led_to(POD), led_to(POD, ELSEWHERE), False),
        ("… at start", flow(VIP, POD, 5353), None, led_to(POD), False),
        ("… that has gone", flow(VIP, POD, 5353), led_to(POD, ELSEWHERE), led_to(ELSEWHERE), True),
        ("… at another port", flow(VIP, POD, 53), None, led_to(POD), True),
        ("… on this node", flow(VIP, NODE, 5353), led_to(NODE), led_to(NODE), False),
        ("… that was one at an earlier run", flow(VIP, POD, 5353), None, led_to(ELSEWHERE), True),
        ("… by another path now", flow(VIP, POD, 5353), led_to(POD), IN_USER_SPACE, False),
        ("to the proxy port, before the kernel path", flow(VIP, NODE, 7001), SERVED, led_to(POD), False),
        ("to an endpoint of a Service that has gone", flow(VIP, POD, 5353), led_to(POD), NOTHING, True),
        ("to an endpoint of another program's", flow(VIP, ELSEWHERE, 5353), led_to(POD), led_to(POD), False),
        ("not translated: older than the Service", flow(VIP, VIP, 53), NOTHING, SERVED, True),
        ("… in IPv6", flow(VIP6, VIP6, 53, source=CLIENT6), NOTHING, SERVED, True),
        ("… at start", flow(VIP, VIP, 53), None, SERVED, True),
        ("… after rules were lost and restored", flow(VIP, VIP, 53), SERVED, SERVED, True),
        ("to the proxy port, at the landing address", flow(VIP, NODE, 7001), NOTHING, SERVED, False),
        ("… of the node's own", flow(VIP, LOOPBACK, 7001, source=NODE), NOTHING, SERVED, False),
        ("… at the address of the interface", flow(VIP, SECOND_NODE_ADDRESS, 7001), None, SERVED, False),
        ("… in IPv6", flow(VIP6, NODE6, 7001, source=CLIENT6), None, SERVED, False),
        ("to the port of an earlier run", flow(VIP, NODE, 6001), None, SERVED, True),
        ("of a pod, to its own port", flow(VIP, NODE, 7002, source=POD), OWN, OWN, False),
        ("… to that of others", flow(VIP, NODE, 7001, source=POD), OWN, OWN, True),
        ("… where it may be another node's pod", flow(VIP, NODE, 7001, source=POD), OWN, UPLINKED, False),
        ("… to its own", flow(VIP, NODE, 7002, source=POD), OWN, UPLINKED, False),
        ("… to neither", flow(VIP, NODE, 6001, source=POD), OWN, UPLINKED, True),
        ("of the node, to the port of others", flow(VIP, LOOPBACK, 7001, source=NODE), OWN, UPLINKED, True),
        ("to the port before this", flow(VIP, NODE, 6001), rules({udp(VIP): 6001}), SERVED, True),
        ("… at loopback", flow(VIP, LOOPBACK, 6001, source=NODE), rules({udp(VIP): 6001}), SERVED, True),
        ("to an address the node has no more", flow(VIP, OLD_NODE_ADDRESS, 7001), None, SERVED, True),
        (
            "… as rules had it",
            flow(VIP, OLD_NODE_ADDRESS, 7001),
            replace(SERVED, landing={Family.IPV4: OLD_NODE_ADDRESS}),
            SERVED,
            True,
        ),
        (
            "listeners have been bound to another address",
            flow(VIP, SECOND_NODE_ADDRESS, 7001),
            SERVED,
            replace(SERVED, bind={Family.IPV4: NODE}),
            True,
        ),
        ("… and this one to that", flow(VIP, NODE, 7001), SERVED, replace(SERVED, bind={Family.IPV4: NODE}), False),
        ("the Service has gone", flow(VIP, NODE, 7001), SERVED, NOTHING, True),
        ("… others not", flow(VIP, NODE, 7001), SERVED, rules({udp(OTHER_VIP): 7001}), True),
        ("… earlier, and its port serves another", flow(VIP, NODE, 7001), None, rules({udp(POD): 7001}), True),
        ("… of an earlier run, unknown", flow(VIP, NODE, 6001), None, rules({udp(POD): 7001}), False),
        ("… and the flow was never ours", flow(VIP, VIP, 53), SERVED, NOTHING, False),
        ("… only that for TCP", flow(VIP, NODE, 7001), rules({udp(VIP): 7001, tcp(VIP): 7001}), SERVED, False),
        ("refused now", flow(VIP, NODE, 7001), SERVED, replace(SERVED, refused=ports(7001)), True),
        ("dropped now", flow(VIP, NODE, 7001), SERVED, replace(SERVED, dropped=ports(7001)), True),
        ("another is refused", flow(VIP, NODE, 7001), SERVED, replace(SERVED, refused=ports(7002)), False),
        (
            "its namesake of TCP is refused",
            flow(VIP, NODE, 7001),
            SERVED,
            replace(SERVED, refused={ProxyPort(Protocol.TCP, 7001)}),
            False,
        ),
        ("served again", flow(VIP, NODE, 7001), replace(SERVED, refused=ports(7001)), SERVED, False),
        ("a node port", flow(NODE, NODE, 7001, port=30053), None, NODE_PORT, False),
        ("… at loopback", flow(LOOPBACK, LOOPBACK, 7001, port=30053, source=LOOPBACK), None, NODE_PORT, False),
        ("… older than the Service", flow(NODE, NODE, 30053, port=30053), NOTHING, NODE_PORT, True),
        ("… of an earlier run", flow(NODE, NODE, 6001, port=30053), None, NODE_PORT, True),
        (
            "… on an address that takes none",
            flow(SECOND_NODE_ADDRESS, SECOND_NODE_ADDRESS, 30053, port=30053),
            NOTHING,
            NODE_PORT,
            False,
        ),
        (
            "… on an address that takes none any more",
            flow(SECOND_NODE_ADDRESS, NODE, 7001, port=30053),
            replace(NODE_PORT, node_addresses=frozenset({NODE, SECOND_NODE_ADDRESS})),
            NODE_PORT,
            True,
        ),
        ("… of a Service that is gone", flow(NODE, NODE, 7001, port=30053), NODE_PORT, NOTHING, True),
        ("the node's own clients: theirs", flow(VIP, LOOPBACK, 7002, source=NODE), None, OWN, False),
        ("… the others'", flow(VIP, LOOPBACK, 7001, source=NODE), None, OWN, True),
        ("… from all of 127/8", flow(VIP, LOOPBACK, 7002, source=Address("127.8.8.8")), None, OWN, False),
        ("pods: theirs", flow(VIP, NODE, 7002, source=POD), None, OWN, False),
        ("… the others'", flow(VIP, NODE, 7001, source=POD), None, OWN, True),
        ("clients outside: theirs", flow(VIP, NODE, 7001), None, OWN, False),
        ("… the pods'", flow(VIP, NODE, 7002), None, OWN, True),
        (
            "… when there are no others'",
            flow(VIP, NODE, 7002),
            OWN,
            replace(OWN, redirects=from_node({udp(VIP): 7002})),
            True,
        ),
        ("a client that may", flow(VIP, NODE, 7001), None, RANGED, False),
        ("a client that may not any more", flow(VIP, NODE, 7001, source=ELSEWHERE), SERVED, RANGED, True),
        (
            "a client when none is admitted",
            flow(VIP, NODE, 7001),
            None,
            replace(RANGED, allowed_sources={udp(VIP): frozenset()}),
            True,
        ),
        (
            "ranges of another destination",
            flow(OTHER_VIP, NODE, 7001, source=ELSEWHERE),
            None,
            rules({udp(VIP): 7001, udp(OTHER_VIP): 7001}, allowed_sources=RANGED.allowed_sources),
            False,
        ),
        ("to another host, since before we came", flow(VIP, POD, 5353), NOTHING, SERVED, True),
        ("… at start", flow(VIP, POD, 5353), None, SERVED, True),
        (
            "… though it was redirected before: the other translation comes first",
            flow(VIP, POD, 5353),
            SERVED,
            rules({udp(VIP): 7002}),
            False,
        ),
        ("to another host, and not ours", flow(ELSEWHERE, POD, 5353), None, SERVED, False),
        ("to another host's port of ours", flow(ELSEWHERE, POD, 7001), None, SERVED, False),
        ("to the node, but not to a port of ours", flow(ELSEWHERE, NODE, 5353), SERVED, NOTHING, False),
        ("straight to a proxy port, older than the guard", flow(NODE, NODE, 7001, port=7001), NOTHING, SERVED, True),
        ("… of another host", flow(ELSEWHERE, ELSEWHERE, 7001, port=7001), NOTHING, SERVED, False),
        ("from a proxy port: answers", flow(CLIENT, CLIENT, 40000, port=40000, source=NODE), NOTHING, SERVED, False),
        ("another port of the same address", flow(VIP, VIP, 54, port=54), NOTHING, SERVED, False),
        (
            "the number of a proxy port, translated by another program",
            flow(NODE, NODE, 5353, port=7001),
            None,
            SERVED,
            False,
        ),
    ],
)
def test_stale(why: str, it: TrackedFlow, before: RuleSet | None, now: RuleSet, expected: bool) -> None:
    assert is_stale(it, before, now) is expected, why
    if expected and before is not now:
        assert Family(6 if ":" in it.address else 4) in Transition(before, now).families, "it has to be looked for"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, NOTHING),
        (None, rules({tcp(VIP): 7001})),
        (SERVED, SERVED),
        (SERVED, replace(SERVED, redirects=dict(SERVED.redirects))),
        (SERVED, replace(SERVED, redirects={**SERVED.redirects, Traffic(tcp(VIP)): 7009})),
        (SERVED, replace(SERVED, refused={ProxyPort(Protocol.TCP, 7001)})),
        (replace(SERVED, refused=ports(7001)), SERVED),
        (replace(SERVED, dropped=ports(7001)), SERVED),
        (replace(SERVED, proxy_ports=ports(7001, 7002)), SERVED),
        (rules({tcp(VIP): 1}), rules({tcp(VIP): 1}, landing={}, node_addresses=frozenset({NODE}))),
        (SERVED, replace(SERVED, transparent=True)),
    ],
)
def test_the_kernel_is_not_asked_when_nothing_can_be_stale(before: RuleSet | None, now: RuleSet) -> None:
    assert Transition(before, now).families == frozenset()


@pytest.mark.parametrize(
    ("why", "it", "before", "now", "expected"),
    [
        ("asked before the Service was there", flow(VIP, VIP, 53), NOTHING, rules({tcp(VIP): 7001}), True),
        ("… and the rules before are unknown", flow(VIP, VIP, 53), None, rules({tcp(VIP): 7001}), True),
        ("led to us", flow(VIP, NODE, 7001), NOTHING, rules({tcp(VIP): 7001}), False),
        ("translated by another program", flow(VIP, POD, 8080), NOTHING, rules({tcp(VIP): 7001}), False),
        ("the Service is not new", flow(VIP, VIP, 53), rules({tcp(VIP): 7001}), rules({tcp(VIP): 7002}), False),
        ("a Service of UDP", flow(VIP, VIP, 53), NOTHING, rules({udp(VIP): 7001}), False),
        ("another port", flow(VIP, VIP, 54, port=54), NOTHING, rules({tcp(VIP): 7001}), False),
        (
            "only for the node itself, and not from there",
            flow(VIP, VIP, 53),
            NOTHING,
            RuleSet(redirects=from_node({tcp(VIP): 7001})),
            False,
        ),
        (
            "… and from there",
            flow(VIP, VIP, 53, source=NODE),
            NOTHING,
            RuleSet(redirects=from_node({tcp(VIP): 7001})),
            True,
        ),
    ],
)
def test_untranslated_flows(why: str, it: TrackedFlow, before: RuleSet | None, now: RuleSet, expected: bool) -> None:
    transition = Transition(before, now)
    assert transition.untranslated([it], local=LOCAL) == [it] * expected, why
    if expected:
        assert transition.new_tcp_families == {Family.IPV4}, "it has to be looked for"


def test_only_new_destinations_of_tcp_are_looked_for() -> None:
    four, six = rules({tcp(VIP): 7001}), rules({tcp(VIP6): 7001})
    assert Transition(NOTHING, four).new_tcp_families == {Family.IPV4}
    assert Transition(four, replace(four, redirects={**four.redirects, **six.redirects})).new_tcp_families == {
        Family.IPV6
    }
    for before, now in ((four, NOTHING), (four, rules({tcp(VIP): 7002})), (NOTHING, SERVED)):
        assert Transition(before, now).new_tcp_families == frozenset()


def test_only_families_that_the_change_concerns_are_asked_for() -> None:
    four, six = rules({udp(VIP): 7001}), rules({udp(VIP6): 7001})
    assert Transition(SERVED, NOTHING).families == set(Family)
    assert Transition(four, NOTHING).families == {Family.IPV4}
    assert Transition(six, replace(six, refused=ports(7001))).families == {Family.IPV6}
    assert Transition(NOTHING, four).families == set(Family), "a new guard is for both"


# Against a model of the kernel that writes every rule out, and asks what would become of a flow's next packet.

NETWORKS = ("10.3.0.0/16", "10.2.0.0/30", "192.0.2.0/24")
ADDRESSES = (VIP, OTHER_VIP, NODE, SECOND_NODE_ADDRESS)
PROXY_PORTS = (7001, 7002, 7003)

destinations = st.builds(
    Destination,
    st.sampled_from([VIP, OTHER_VIP, NODE_PORTS[Family.IPV4]]),
    st.sampled_from([Protocol.UDP, Protocol.UDP, Protocol.TCP]),
    st.sampled_from([53, 54, 7001]),
)
redirects = st.dictionaries(
    st.builds(Traffic, destinations, st.sampled_from(Origin)), st.sampled_from(PROXY_PORTS), max_size=6
)
some_networks = st.frozensets(st.sampled_from(NETWORKS), max_size=2)
some_ports = st.sets(
    st.builds(ProxyPort, st.sampled_from([Protocol.UDP, Protocol.UDP, Protocol.TCP]), st.sampled_from(PROXY_PORTS)),
    max_size=1,
)
rule_sets = st.builds(
    RuleSet,
    redirects=redirects,
    internal_sources=some_networks,
    node_addresses=st.frozensets(st.sampled_from([NODE, SECOND_NODE_ADDRESS])),
    allowed_sources=st.one_of(st.just({}), st.dictionaries(destinations, some_networks, max_size=2)),
    proxy_ports=st.builds(lambda: {ProxyPort(Protocol.UDP, port) for port in PROXY_PORTS}) | some_ports,
    refused=some_ports,
    dropped=some_ports,
    landing=st.sampled_from([{}, {Family.IPV4: NODE}, {Family.IPV4: OLD_NODE_ADDRESS}]),
    bind=st.sampled_from([{}, {}, {Family.IPV4: SECOND_NODE_ADDRESS}]),
)
flows = st.builds(
    lambda source, to, target: TrackedFlow(source, 40000, *to, *(target or to)),
    st.sampled_from([CLIENT, POD, NODE, ELSEWHERE, Address("127.0.0.2")]),
    st.tuples(st.sampled_from([*ADDRESSES, ELSEWHERE]), st.sampled_from([53, 54, 7001])),
    st.none()
    | st.tuples(
        st.sampled_from([NODE, LOOPBACK, SECOND_NODE_ADDRESS, OLD_NODE_ADDRESS, POD]),
        st.sampled_from([*PROXY_PORTS, 6001]),
    ),
)


def inside(source: Address, cidrs: frozenset[str]) -> bool:
    return any(ipaddress.ip_address(source) in ipaddress.ip_network(cidr) for cidr in cidrs)


def redirected_by(kernel: RuleSet, source: Address, address: Address, port: int) -> tuple[Destination, int] | None:
    """The first rule that takes a packet, of all the rules in their order, one for each address."""
    own = source in LOCAL or source.startswith("127.") or inside(source, kernel.internal_sources)
    everything = [
        (rule_address, destination, to)
        for node_ports in (False, True)
        for origin in Origin
        if own or origin is Origin.ANYWHERE
        for destination, to in of(origin, kernel.redirects).items()
        if (destination.address == "0.0.0.0") is node_ports
        for rule_address in (kernel.node_addresses if node_ports else [destination.address])
    ]
    for rule_address, destination, to in everything:
        if (rule_address, destination.protocol, destination.port) == (address, Protocol.UDP, port):
            return destination, to
    return None


def ways(kernel: RuleSet, it: TrackedFlow) -> set[tuple[Address, int]]:
    """The target of a new flow; None if it is refused or dropped."""
    found = redirected_by(kernel, it.source, it.address, it.port)
    if found is None:
        direct = it.address in LOCAL and ProxyPort(Protocol.UDP, it.port) in kernel.guarded - kernel.unguarded
        return set() if direct else {(it.address, it.port)}
    destination, port = found
    if ProxyPort(Protocol.UDP, port) in kernel.refused | kernel.dropped:
        return set()
    if destination in kernel.allowed_sources and not inside(it.source, kernel.allowed_sources[destination]):
        return set()
    bind = kernel.bind.get(Family.IPV4)
    return {(address, port) for address in ([bind] if bind else [*LOCAL, *kernel.landing.values()])}


def model(it: TrackedFlow, before: RuleSet | None, now: RuleSet) -> bool:
    """Whether it is stale."""
    known = [each for each in (before, now) if each is not None]
    addresses = LOCAL.union(*(set(each.landing.values()) | set(each.bind.values()) for each in known))
    ours = {port for each in (now, *known) for port in each.guarded}
    translated = (it.target, it.target_port) != (it.address, it.port)
    is_now = redirected_by(now, it.source, it.address, it.port) is not None
    was = None if before is None else redirected_by(before, it.source, it.address, it.port)
    if translated and it.target not in addresses:
        return is_now and was is None
    if translated and not is_now:
        return ProxyPort(Protocol.UDP, it.target_port) in ours or (was is not None and was[1] == it.target_port)
    return (it.target, it.target_port) not in ways(now, it)


@given(st.lists(flows, max_size=20), st.none() | rule_sets, rule_sets)
def test_as_the_model_has_it(tracked: list[TrackedFlow], before: RuleSet | None, now: RuleSet) -> None:
    found = Transition(before, now).stale(tracked, local=LOCAL)
    assert found == [it for it in tracked if model(it, before, now)]
    rest = [it for it in tracked if it not in found]
    assert Transition(before, now).stale(rest, local=LOCAL) == []


@given(st.lists(flows, max_size=20), rule_sets, rule_sets, st.none() | rule_sets)
def test_flows_made_by_the_rules_are_not_stale(
    tracked: list[TrackedFlow], now: RuleSet, before: RuleSet, earlier: RuleSet | None
) -> None:
    made = [it._replace(target=way[0], target_port=way[1]) for it in tracked for way in ways(now, it)]
    assert Transition(earlier, now).stale(made, local=LOCAL) == []


changes = st.fixed_dictionaries(
    {},
    optional={
        "redirects": redirects,
        "refused": some_ports,
        "dropped": some_ports,
        "landing": st.just({Family.IPV4: NODE}),
        "proxy_ports": some_ports,
        "allowed_sources": st.dictionaries(destinations, some_networks, max_size=1),
    },
)


@given(st.lists(flows, max_size=20), rule_sets, changes)
def test_families_without_a_change_have_no_stale_flow(
    tracked: list[TrackedFlow], before: RuleSet, change: dict[str, Any]
) -> None:
    now = replace(before, **change)
    gone = Transition(None, before).stale(tracked, local=LOCAL)
    transition = Transition(before, now)
    if not transition.families:
        assert transition.stale([it for it in tracked if it not in gone], local=LOCAL) == []


endpoints = st.frozensets(
    st.builds(Target, st.sampled_from([POD, ELSEWHERE, NODE]), st.sampled_from([6001, 7001])), max_size=3
)
spreads = st.dictionaries(
    st.builds(Traffic, destinations, st.sampled_from(Origin)),
    endpoints.map(lambda them: Spread("dns", tuple(sorted(them)), tuple(sorted(them)))),
    max_size=4,
)


@given(st.lists(flows, max_size=20), rule_sets, spreads, spreads)
def test_if_endpoints_alone_change_only_flows_to_those_that_left_become_stale(
    tracked: list[TrackedFlow], base: RuleSet, had: dict[Traffic, Spread], has: dict[Traffic, Spread]
) -> None:
    before, now = replace(base, spreads=had), replace(base, spreads=has)
    gone = Transition(None, before).stale(tracked, local=LOCAL)
    transition = Transition(before, now)
    assert transition.left is not None
    found = transition.stale([it for it in tracked if it not in gone], local=LOCAL)
    assert {it.target for it in found} <= transition.left


def test_the_kernel_is_not_asked_for_flows_when_endpoints_only_come() -> None:
    one, two = led_to(POD), led_to(POD, ELSEWHERE)
    assert Transition(one, two).families == frozenset()
    left = Transition(two, one)
    assert left.left == frozenset({ELSEWHERE})
    assert left.families == frozenset({Family.IPV4})
    assert Transition(two, replace(one, landing={})).left is None


# Messages.

RECORD4 = bytes.fromhex(
    "34000180" "14000180" "08000100" "0a090001" "08000200" "0a090909"
    "1c000280" "05000100" "11000000" "06000200" "c0270000" "06000300" "00350000"
    "34000280" "14000180" "08000100" "7f000001" "08000200" "0a090001"
    "1c000280" "05000100" "11000000" "06000200" "14e90000" "06000300" "c0270000"
    "08000300" "000001a8" "08000800" "00000000" "08000c00" "31a55879"
)  # fmt: skip
RECORD6 = bytes.fromhex(
    "4c000180" "2c000180" "14000300" "fd090000000000000000000000000001" "14000400" "00000000000000000000000001020304"
    "1c000280" "05000100" "11000000" "06000200" "dacc0000" "06000300" "00350000"
    "4c000280" "2c000180" "14000300" "00000000000000000000000000000001" "14000400" "fd090000000000000000000000000001"
    "1c000280" "05000100" "11000000" "06000200" "14e90000" "06000300" "dacc0000"
    "08000c00" "32853d95"
)  # fmt: skip


def _consistent(it: RuleSet) -> RuleSet:
    """With the proxy ports that its redirects have. Only these refuse or drop."""
    led = {ProxyPort(to.protocol, port) for (to, _), port in it.redirects.items()}
    return replace(it, proxy_ports=led, refused=it.refused & led, dropped=it.dropped & led)


@given(st.lists(flows, max_size=20), rule_sets, rule_sets)
def test_a_change_has_the_stale_flows_of_its_destinations_and_ports(
    tracked: list[TrackedFlow], first: RuleSet, second: RuleSet
) -> None:
    """What the rules before have left is what they would not have deleted."""
    first, second = _consistent(first), _consistent(like(first, second))
    # Where a port begins or ceases to be unguarded, complete rules come instead of a change.
    assume(first.unguarded == second.unguarded)
    change = change_between(first, second)
    left = [it for it in tracked if it not in Transition(None, first).stale(tracked, local=LOCAL)]
    of_all, of_parts = Transition(first, second), Transition(part(first, change), part(second, change))
    stale = of_all.stale(left, local=LOCAL) if of_all.families else []
    assert of_parts.stale(left, local=LOCAL) == stale
    assert of_parts.families or not stale, "the kernel is asked for them"
    assert of_parts.new_tcp_families == of_all.new_tcp_families
    assert of_parts.untranslated(tracked, local=LOCAL) == of_all.untranslated(tracked, local=LOCAL)


def answer(record: bytes, kind: int = 0x100) -> Message:
    return Message(kind, 1, bytes(4) + record)


def test_a_record_is_read() -> None:
    assert wire.parse_flow(answer(RECORD4)) == TrackedFlow(
        Address("10.9.0.1"), 0xC027, Address("10.9.9.9"), 53, LOOPBACK, 5353, RECORD4
    )
    found = wire.parse_flow(answer(RECORD6))
    assert found is not None
    assert found[:6] == ("fd09::1", 0xDACC, "::102:304", 53, "::1", 5353), "as our addresses are written"


@pytest.mark.parametrize(
    "message",
    [
        answer(RECORD4, kind=0x101),
        answer(RECORD4.replace(bytes.fromhex("11000000"), bytes.fromhex("06000000"))),
        answer(RECORD4[:60]),
        answer(b""),
        Message(0x100, 1, b""),
    ],
)
def test_an_answer_without_a_udp_flow_is_ignored(message: Message) -> None:
    assert wire.parse_flow(message) is None


def test_a_deletion_names_the_tuple_of_the_replies_and_the_identity() -> None:
    for record in (RECORD4, RECORD6):
        flow = wire.parse_flow(answer(record))
        assert flow is not None
        (message,) = parse(wire.delete_request(flow, 7))
        length = 52 if record is RECORD4 else 76
        replies = record[length : 2 * length]
        assert message.kind == 0x102
        assert message.sequence == 7
        assert message.body == bytes([2 if record is RECORD4 else 10, 0, 0, 0]) + replies + record[-8:]


def test_messages_are_taken_apart() -> None:
    request = wire.dump_request(Family.IPV4, 5)
    assert [message.sequence for message in parse(request + wire.dump_request(Family.IPV6, 6))] == [5, 6]
    assert list(parse(bytes(16))) == [], "a length of nothing ends it"
    assert Message(NLMSG_ERROR, 1, (-2).to_bytes(4, "little", signed=True)).error == 2


# The fake.


async def test_the_fake_keeps_what_agrees() -> None:
    fake = FakeConntrack(local=LOCAL)
    good, bad = flow(VIP, NODE, 7001), flow(VIP, NODE, 6001)
    fake.flows = [good, bad]
    fake.fail("no power")
    with pytest.raises(KernelError, match="no power"):
        await fake.reconcile(None, SERVED)
    assert fake.flows == [good, bad]
    assert await fake.reconcile(None, SERVED) == 1
    assert await fake.reconcile(SERVED, replace(SERVED)) == 0
    assert (fake.flows, fake.deleted, fake.dumps) == ([good], [bad], 1)
    assert fake.calls == [(None, SERVED), (None, SERVED), (SERVED, SERVED)]
    assert await NoConntrack().reconcile(None, SERVED) == 0
