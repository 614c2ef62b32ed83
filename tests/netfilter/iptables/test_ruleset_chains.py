"""A rule set as chains of the legacy tables: set differences, and nothing unguarded on the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Family, Protocol, Traffic
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.chains import (
    FILTER,
    NAT,
    NODEPORT_CONTAINER,
    NODEPORT_INTERNAL,
    OWN,
    PORTALS_CONTAINER,
    PORTALS_HOST,
    PORTALS_INTERNAL,
    PROXY_CLOSED,
    PROXY_DIRECT,
    Chains,
    RuleFactory,
    comes_last,
    difference,
    union,
)
from kubeproxy.netfilter.iptables.ruleset_chains import chains_of, is_needed
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.nftables.test_transaction import rule_sets
from tests.netfilter.stage import destination, node_port, rule_set

WEB = destination("10.96.0.1", Protocol.TCP)
WEB6 = destination("fd96::1", Protocol.TCP)


def test_each_family_has_its_own_addresses() -> None:
    rules = rule_set({WEB: 7001, WEB6: 7002})
    for family, address in ((Family.IPV4, WEB.address), (Family.IPV6, WEB6.address)):
        port = 7001 if family is Family.IPV4 else 7002
        rule = iptables_entry.rule(
            family,
            iptables_entry.redirect(family, port),
            iptables_entry.match_port(Protocol.TCP, 80),
            protocol=Protocol.TCP,
            destination=address,
        )
        assert chains_of(rules, family)[NAT][PORTALS_CONTAINER] == frozenset({rule})


def test_ipv6_tables_are_left_alone_until_there_is_an_ipv6_address() -> None:
    assert not is_needed(rule_set({WEB: 7001}), Family.IPV6)
    assert is_needed(rule_set({WEB6: 7001}), Family.IPV6)
    assert is_needed(RuleSet(), Family.IPV4)


def test_landing_changes_the_container_chain_and_bind_both() -> None:
    plain = chains_of(rule_set({WEB: 7001}), Family.IPV4)[NAT]
    landed = chains_of(rule_set({WEB: 7001}, landing=("10.2.0.1",)), Family.IPV4)[NAT]
    bound = chains_of(rule_set({WEB: 7001}, bind=("10.2.0.1",)), Family.IPV4)[NAT]
    assert landed[PORTALS_CONTAINER] == bound[PORTALS_CONTAINER] == bound[PORTALS_HOST]
    assert landed[PORTALS_CONTAINER] != plain[PORTALS_CONTAINER]
    assert landed[PORTALS_HOST] == plain[PORTALS_HOST] == plain[PORTALS_CONTAINER]


def test_dropping_wins_over_refusing_and_both_are_guarded() -> None:
    port = ProxyPort(Protocol.TCP, 7001)
    chains = chains_of(RuleSet(refused={port}, dropped={port}), Family.IPV4)[FILTER]
    drop = iptables_entry.rule(
        Family.IPV4, iptables_entry.jump("DROP"), iptables_entry.match_port(*port), protocol=Protocol.TCP
    )
    assert chains[PROXY_CLOSED] == chains[PROXY_DIRECT] == frozenset({drop})


def follow(have: Chains, wanted: Chains, table: str) -> Chains:
    """Apply a difference as libiptc would."""
    todo = difference(have, wanted, table=table)
    chains = {name: set(rules) for name, rules in have.items() if name in OWN[table]}
    built_in = {name: list(rules) for name, rules in have.items() if name not in OWN[table]}
    for name in todo.create:
        assert name not in chains
        chains[name] = set()
    for name in (*todo.flush, *todo.drop):
        chains[name].clear()
    for name, rule in todo.delete:
        (built_in[name] if name in built_in else chains[name]).remove(rule)
    for name, rule in todo.add:
        if name in OWN[table]:
            assert rule not in chains[name]
            chains[name].add(rule)
        else:
            built_in.setdefault(name, []).append(rule)
    for name in todo.drop:
        assert not chains.pop(name)
    rest = {name: tuple(rules) for name, rules in built_in.items() if rules}
    return {name: frozenset(rules) for name, rules in chains.items()} | rest


@given(first=rule_sets, second=rule_sets)
def test_differences_lead_from_any_rule_set_to_any_other(first: RuleSet, second: RuleSet) -> None:
    for family in Family:
        for table in OWN:
            old, new = chains_of(first, family)[table], chains_of(second, family)[table]
            assert follow(old, new, table) == new
            assert not difference(new, new, table=table)
            assert follow(follow({}, new, table), {}, table) == {}
            both = follow(old, union(old, new), table)
            assert all(set(both[name]) >= {*old.get(name, ()), *new[name]} for name in new)


def test_a_chain_that_loses_most_is_filled_anew() -> None:
    many = chains_of(
        RuleSet(redirects={Traffic(destination(f"10.96.0.{i}", Protocol.TCP)): 7001 for i in range(9)}), Family.IPV4
    )
    few = chains_of(RuleSet(redirects={Traffic(WEB): 7001}), Family.IPV4)
    todo = difference(many[NAT], few[NAT], table=NAT)
    assert set(todo.flush) == {PORTALS_CONTAINER, PORTALS_HOST}
    assert not todo.delete


def test_other_chains_of_ours_and_of_kube_proxys_go() -> None:
    wanted = chains_of(rule_set({WEB: 7001}), Family.IPV4)[NAT]
    jump = iptables_entry.rule(Family.IPV4, iptables_entry.jump("KUBE-NODEPORT-HOST"))
    left = {**wanted, "KUBE-NODEPORT-HOST": frozenset[bytes](), "OUTPUT": (jump, *wanted["OUTPUT"])}
    assert difference(left, wanted, table=NAT).drop == ("KUBE-NODEPORT-HOST",)
    assert follow(left, wanted, NAT) == wanted


def test_node_ports_cost_a_rule_for_each_port_and_one_for_each_address() -> None:
    redirects = {node_port(Family.IPV4, Protocol.TCP, port): 7001 for port in range(30000, 30100)}
    rules = rule_set(redirects, node_addresses=("10.2.0.1", "10.3.0.1", "127.0.0.1", "::1"))
    nat = chains_of(rules, Family.IPV4)[NAT]
    assert {name: len(chain) for name, chain in nat.items() if "PORTAL" not in name} == {
        "PREROUTING": 2,
        "OUTPUT": 2,
        "KUBE-NODEPORT-CONTAINER": 2,
        "KUBE-PORTS-CONTAINER": 100,
        "KUBE-NODEPORT-HOST": 3,
        "KUBE-PORTS-HOST": 100,
    }
    assert not any("NODEPORT" in name for name in chains_of(replace(rules, redirects={}), Family.IPV4)[NAT])


def test_redirects_of_pods_come_first_and_node_ports_last() -> None:
    node = node_port(Family.IPV4, Protocol.TCP, 30080)
    rules = rule_set(
        {WEB: 7001, node: 7001},
        own={WEB: 7002, node: 7002},
        internal=("10.3.0.0/24", "10.3.1.0/24"),
        node_addresses=("10.2.0.1",),
    )
    jumps = chains_of(rules, Family.IPV4)[NAT]["PREROUTING"]
    targets = [entry[-38:].partition(b"\0")[0].decode() for entry in jumps]
    assert targets == [PORTALS_INTERNAL, PORTALS_CONTAINER, NODEPORT_INTERNAL, NODEPORT_CONTAINER]
    assert [comes_last(entry) for entry in jumps] == [False, False, True, True]
    # Pods of other nodes go the way of all, by jumps before those of this node's pods.
    jumps = chains_of(replace(rules, uplinks=frozenset({"eth0", "eth1"})), Family.IPV4)[NAT]["PREROUTING"]
    targets = [entry[-38:].partition(b"\0")[0].decode() for entry in jumps]
    assert targets == [
        *(PORTALS_CONTAINER, PORTALS_CONTAINER, PORTALS_INTERNAL, PORTALS_CONTAINER),
        *(NODEPORT_CONTAINER, NODEPORT_CONTAINER, NODEPORT_INTERNAL, NODEPORT_CONTAINER),
    ]
    assert [b"eth0" in entry for entry in jumps] == [True, *[False] * 3, True, *[False] * 3]


def test_a_proxy_port_that_is_the_services_own_is_not_guarded_but_refuses() -> None:
    port = ProxyPort(Protocol.TCP, 7001)
    same = destination("10.2.0.1", Protocol.TCP, 7001)
    rules = rule_set({same: 7001, WEB: 7002}, node_addresses=("10.2.0.1",))
    assert rules.unguarded == {port}
    assert rule_set({destination("10.9.9.9", Protocol.TCP, 7001): 7001}).unguarded == frozenset()
    drop = {
        number: iptables_entry.rule(
            Family.IPV4,
            iptables_entry.jump("DROP"),
            iptables_entry.match_port(Protocol.TCP, number),
            protocol=Protocol.TCP,
        )
        for number in (7001, 7002)
    }
    assert chains_of(rules, Family.IPV4)[FILTER][PROXY_DIRECT] == frozenset({drop[7002]})
    rules = replace(rules, dropped={port})
    assert chains_of(rules, Family.IPV4)[FILTER][PROXY_DIRECT] == frozenset(drop.values())


@given(sequence=st.lists(rule_sets, min_size=2, max_size=4))
def test_what_is_made_from_the_last_is_as_if_made_anew(sequence: list[RuleSet]) -> None:
    rule_factory = RuleFactory()
    for rules in sequence:
        for family in Family:
            assert chains_of(rules, family, rule_factory) == chains_of(rules, family)


def test_only_what_is_different_is_made() -> None:
    rule_factory, made = RuleFactory(), list[object]()

    def rules(key: str, value: int) -> list[bytes]:
        made.append(key)
        return [f"{key}{value}".encode()]

    first = rule_factory.make(Family.IPV4, "c", {"a": 1, "b": 2}, rules, to=None)
    made.clear()
    assert rule_factory.make(Family.IPV4, "c", {"a": 1, "b": 2}, rules, to=None) is first
    assert made == []
    assert rule_factory.make(Family.IPV4, "c", {"a": 1, "b": 3}, rules, to=None) == {b"a1", b"b3"}
    assert set(made) == {"b"}
    assert rule_factory.make(Family.IPV4, "c", {"a": 1}, rules, to="elsewhere") == {b"a1"}
