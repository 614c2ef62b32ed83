"""The nftables table as a value: its text, its parser, and its differences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeproxy.model import Address, Destination, Family, Origin, Protocol, Scope, Target, Traffic, family_of
from kubeproxy.netfilter.nftables import rescue, transaction
from kubeproxy.netfilter.nftables.affinity import affinity_chains
from kubeproxy.netfilter.nftables.declarations import CLIENTS, DIVERT, DIVERT_HOOK, HOOKS, KINDS, REDIRECTS, Kind
from kubeproxy.netfilter.nftables.dynamic_chains import is_dynamic
from kubeproxy.netfilter.nftables.elements import Element, Entry, PackedTargets, packed_target
from kubeproxy.netfilter.nftables.listing import Listed, Listing, table_of
from kubeproxy.netfilter.nftables.rules import rules_of
from kubeproxy.netfilter.nftables.table_change import TableChange, table_change
from kubeproxy.netfilter.nftables.transaction import Table, difference
from kubeproxy.netfilter.nftables.transaction_steps import DELETION, element_steps
from kubeproxy.netfilter.ruleset import DirectLink, Masquerade, ProxyPort, RuleChange, RuleSet, Spread
from tests.netfilter.stage import destination, node_port, rule_set
from tests.support.rule_changes import change_between, changeable, like

WEB = destination("10.96.0.1", Protocol.TCP)
DNS = destination("10.96.0.10", Protocol.UDP, 53)
WEB6 = destination("fd96::1", Protocol.TCP)
NODE_PORT = node_port(Family.IPV4, Protocol.TCP, 30080)
NODE_PORT6 = node_port(Family.IPV6, Protocol.UDP, 30053)


def have(rules: RuleSet) -> Table:
    return Table.of(rules)


def test_nothing_changes_nothing() -> None:
    rules = rule_set({WEB: 7001, WEB6: 7002})
    assert difference(have(rules), rules) == []


def test_one_redirect_more_is_one_element_and_its_guard() -> None:
    steps = difference(have(rule_set({WEB: 7001})), rule_set({WEB: 7001, DNS: 7002}))
    assert steps == [
        "add element inet kubeproxy guarded { udp . 7002 }\n",
        "add element inet kubeproxy redirects4 { 10.96.0.10 . udp . 53 : 7002 }\n",
    ]


def test_guards_are_removed_after_their_redirects() -> None:
    steps = difference(have(rule_set({WEB6: 7001})), RuleSet())
    assert steps == [
        "delete element inet kubeproxy redirects6 { fd96::1 . tcp . 80 : 7001 }\n",
        "delete element inet kubeproxy guarded { tcp . 7001 }\n",
    ]


def test_a_redirect_is_replaced_within_one_step() -> None:
    (step,) = difference(
        have(RuleSet(redirects={Traffic(WEB): 7001})),
        RuleSet(redirects={Traffic(WEB): 7002}),
    )
    assert step == (
        "delete element inet kubeproxy redirects4 { 10.96.0.1 . tcp . 80 : 7001 }\n"
        "add element inet kubeproxy redirects4 { 10.96.0.1 . tcp . 80 : 7002 }\n"
    )


def test_refusing_touches_no_redirect() -> None:
    serving = rule_set({WEB: 7001})
    port = {ProxyPort(Protocol.TCP, 7001)}
    assert difference(have(serving), replace(serving, refused=port)) == [
        "add element inet kubeproxy refused { tcp . 7001 }\n",
        "add element inet kubeproxy refusals4 { 10.96.0.1 . tcp . 80 }\n",
    ]
    assert difference(have(replace(serving, refused=port)), replace(serving, dropped=port)) == [
        "add element inet kubeproxy dropped { tcp . 7001 }\n",
        "delete element inet kubeproxy refused { tcp . 7001 }\n",
        "delete element inet kubeproxy refusals4 { 10.96.0.1 . tcp . 80 }\n",
    ]


def test_another_landing_address_replaces_the_rules_of_one_chain() -> None:
    (step,) = difference(have(rule_set({WEB: 7001})), rule_set({WEB: 7001}, landing=("10.2.0.1",)))
    assert step.startswith("flush chain inet kubeproxy prerouting\n")
    assert "dnat ip to 10.2.0.1 : ip daddr" in step
    assert "flush chain inet kubeproxy output" not in step


def test_landing_applies_to_other_hosts_and_bind_to_all() -> None:
    own = dict.fromkeys((WEB, WEB6, NODE_PORT, NODE_PORT6), 7001)
    landing = rules_of(rule_set({}, own=own, landing=("10.2.0.1", "fd00::1")))
    leading = [rule.text for rule in landing["prerouting"] if not rule.text.endswith(("drop", "goto refuse"))]
    assert {text.split(" } ")[1].split(" : ")[0] for text in leading} == {"dnat ip to 10.2.0.1", "dnat ip6 to fd00::1"}
    assert all(
        any(verdict in rule.text for verdict in ("redirect to :", "drop", "return")) for rule in landing["output"]
    )
    bound = rules_of(rule_set({}, own=own, landing=("10.2.0.1",), bind=("10.9.9.9",)))
    for chain in ("prerouting", "output"):
        assert sum("dnat ip to 10.9.9.9 " in rule.text for rule in bound[chain]) == 4
        assert sum("redirect to " in rule.text for rule in bound[chain]) == 4


def test_a_range_that_shrinks_is_removed_before_it_is_added() -> None:
    before = rule_set({}, allowed={WEB: ("10.0.0.0/8", "10.1.0.0/16")})
    assert difference(have(before), rule_set({}, allowed={WEB: ("10.0.0.0/9",)})) == [
        "delete element inet kubeproxy admitted4 { 10.96.0.1 . tcp . 80 . 10.0.0.0/8 }\n",
        "add element inet kubeproxy admitted4 { 10.96.0.1 . tcp . 80 . 10.0.0.0/9 }\n",
    ]


def test_a_destination_is_restricted_before_it_is_redirected() -> None:
    steps = difference(have(RuleSet()), rule_set({WEB: 7001}, allowed={WEB: ("10.0.0.0/8",)}))
    assert [step.split()[4] for step in steps] == ["guarded", "admitted4", "restricted4", "redirects4"]


def test_many_elements_are_many_steps() -> None:
    redirects = {Traffic(destination(f"10.{i >> 8}.{i & 255}.1", Protocol.TCP)): 7001 for i in range(2500)}
    steps = difference(have(RuleSet()), RuleSet(redirects=redirects))
    assert [step.count("tcp") for step in steps] == [1000, 1000, 500]


destinations = st.builds(
    Destination,
    st.sampled_from(["10.96.0.1", "10.2.0.1", "0.0.0.0", "fd96::1", "fd00::1", "::"]).map(Address),
    st.sampled_from([Protocol.TCP, Protocol.UDP]),
    st.sampled_from([1, 2, 7001]),
)
traffic = st.builds(Traffic, destinations, st.sampled_from([Origin.ANYWHERE, Origin.ANYWHERE, Origin.NODE]))
addresses = st.sampled_from(["10.2.0.1", "127.0.0.1", "fd00::1", "::1"]).map(Address)
cidrs = st.frozensets(st.sampled_from(["10.3.0.0/16", "10.3.7.0/24", "10.4.0.0/16", "10.9.9.9/32", "fd00:3::/32"]))
proxy_ports = st.sets(st.builds(ProxyPort, st.sampled_from([Protocol.TCP, Protocol.UDP]), st.integers(7001, 7003)))
TARGETS = {
    family: [Target(Address(f"{prefix}{number}"), port) for number in range(1, 5) for port in (80, 81)]
    for family, prefix in ((Family.IPV4, "10.0.0."), (Family.IPV6, "fd00:9::"))
}


@st.composite
def spreads(draw: st.DrawFn) -> dict[Traffic, Spread]:
    """Spreads of some traffic, as few of which have affinity."""
    made = {}
    for each in draw(st.lists(traffic, unique=True, max_size=8)):
        to = each.destination
        endpoints = draw(st.lists(st.sampled_from(TARGETS[family_of(to.address)]), unique=True, max_size=6))
        targets = tuple(target for target in endpoints if draw(st.booleans()))
        timeout_s = draw(st.sampled_from([None, None, 60]))
        name = f"default/{draw(st.sampled_from(['web', 'dns']))}-{timeout_s}:{to.protocol}"
        scope = draw(st.sampled_from([Scope.CLUSTER, Scope.LOCAL, Scope.EXTERNAL]))
        made[each] = Spread(name, targets, tuple(endpoints), timeout_s, scope)
    return made


rule_sets = st.builds(
    RuleSet,
    spreads=spreads(),
    masquerades=st.dictionaries(destinations, st.sampled_from(Masquerade), max_size=3),
    hairpins=st.sets(st.sampled_from(["10.0.0.1", "fd00:9::1"]).map(Address)),
    direct_links=st.frozensets(
        st.sampled_from(
            [
                DirectLink(2, "eth0", "10.0.0.0/24"),
                DirectLink(4, "cni0", "10.0.0.0/16"),
                DirectLink(2, "eth0", "fd00:9::/64"),
            ]
        )
    ),
    redirects=st.dictionaries(traffic, st.integers(7001, 7003)),
    internal_sources=cidrs,
    uplinks=st.frozensets(st.sampled_from(["eth0", "eth1", "wlan-1.2"]), max_size=2),
    node_addresses=st.frozensets(addresses),
    transparent=st.booleans(),
    allowed_sources=st.dictionaries(destinations, cidrs, max_size=2),
    proxy_ports=proxy_ports,
    refused=proxy_ports,
    dropped=proxy_ports,
    landing=st.sampled_from([{}, {Family.IPV4: Address("10.2.0.1")}]),
)


class NaiveKernel:
    """Carries out nft's commands, and refuses those that the kernel refuses."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[str, str]] = {}
        self.chains: dict[str, list[str]] = {}
        self.gotos: dict[str, set[str]] = {}
        """The chains to which the rules of each chain jump or go."""

    def obey(self, commands: str) -> None:
        for line in commands.splitlines():
            words = line.split(" ", 4)
            match words[:2]:
                case ["delete", "table"]:
                    self.sets.clear()
                    self.chains.clear()
                    self.gotos.clear()
                case ["add", "set" | "map"]:
                    self.sets[words[4].split()[0]] = {}
                case ["delete", "map"]:
                    del self.sets[words[4]]
                case ["add", "chain"]:
                    self.chains.setdefault(words[4].split()[0], [])
                case ["flush", "chain"]:
                    self.chains[words[4]].clear()
                    self.gotos.pop(words[4], None)
                case ["delete", "chain"]:
                    self.gotos.pop(words[4], None)
                    assert words[4] not in self.jumps().union(*self.gotos.values()), "EBUSY"
                    del self.chains[words[4]]
                case ["add", "rule"]:
                    chain, _, rule = words[4].partition(" ")
                    for name in re.findall(r"@([^ ]+)", rule):
                        assert name in self.sets, "ENOENT"
                    gotos = set(re.findall(r"(?:goto|jump) ([^ ]+)", rule.rpartition(" comment ")[0]))
                    assert gotos <= self.chains.keys(), "ENOENT"
                    self.gotos.setdefault(chain, set()).update(gotos)
                    self.chains[chain].append(rule.rpartition(" comment ")[2].strip('"'))
                case ["flush", "set" | "map"]:
                    self.sets[words[4]].clear()
                case [verb, "element"]:
                    name, _, body = words[4].partition(" { ")
                    for element in body.removesuffix(" }").split(", "):
                        element, _, timeout = element.partition(" timeout ")
                        assert bool(timeout) == name.startswith("paused")
                        key, _, value = element.partition(" : ")
                        if value.startswith("jump "):
                            assert value.removeprefix("jump ") in self.chains, "ENOENT"
                        if verb == "add":
                            assert self.sets[name].get(key, value) == value, "EEXIST"
                            self.sets[name][key] = value
                        else:
                            keys = [each for each in self.sets[name] if each.partition(" comment ")[0] == key]
                            assert [self.sets[name].pop(each) for each in keys] == [value], "ENOENT"
                case _:
                    pass

    def jumps(self) -> set[str]:
        """The chains to which elements jump."""
        values = (value for elements in self.sets.values() for value in elements.values())
        return {value.removeprefix("jump ") for value in values if value.startswith("jump ")}


def _local_policy() -> RuleSet:
    """A destination under externalTrafficPolicy Local: clients of this node have their own way, with more endpoints."""
    some, every = TARGETS[Family.IPV4][:1], TARGETS[Family.IPV4]
    return RuleSet(
        spreads={
            Traffic(WEB): Spread("default/web-60:TCP", tuple(some), tuple(some), 60, Scope.EXTERNAL),
            Traffic(WEB, Origin.NODE): Spread("default/web-60:TCP", tuple(every), tuple(every), 60),
        },
    )


@given(first=rule_sets, second=rule_sets)
@example(first=_local_policy(), second=RuleSet())
def test_differences_lead_from_any_rule_set_to_any_other(first: RuleSet, second: RuleSet) -> None:
    travelled, direct = NaiveKernel(), NaiveKernel()
    travelled.obey("".join(difference(None, first)))
    travelled.obey("".join(difference(have(first), second)))
    direct.obey("".join(difference(None, second)))
    assert canonical(travelled) == canonical(direct)
    assert travelled.chains == direct.chains


@given(first=rule_sets, second=rule_sets, empty=st.booleans())
def test_slots_apart_lead_to_the_same_table(first: RuleSet, second: RuleSet, empty: bool) -> None:
    travelled, direct = NaiveKernel(), NaiveKernel()
    before = None if empty else have(first)
    if before is not None:
        travelled.obey("".join(difference(None, first)))
    way = transaction.transition(before, second, apart=1)
    slots = "".join(element_steps(way.slots))
    assert "delete" not in slots
    for part in (way.creation, slots, "".join(way.steps)):
        travelled.obey(part)
    direct.obey("".join(difference(None, second)))
    assert canonical(travelled) == canonical(direct)
    if second.spreads and before is None and any(it.targets for it in second.spreads.values()):
        assert slots
        assert way.creation
        assert not any("_slots4 {" in step or "_slots6 {" in step for step in way.steps)


def lasting(chains: dict[str, list[str]]) -> dict[str, list[str]]:
    """The chains without those that come and go with numbers of endpoints and with affinity."""
    return {name: rules for name, rules in chains.items() if not is_dynamic(name)}


def canonical(kernel: NaiveKernel) -> dict[str, Any]:
    """The contents of maps and sets; of slots the targets that each destination has, as their order is free."""
    contents: dict[str, Any] = {}
    for name, elements in kernel.sets.items():
        if "_slots" in name:
            pairs = [(key.rpartition(" . "), value) for key, value in elements.items()]
            assert all(
                sorted(int(number) for (found, _, number), _ in pairs if found == place)
                == list(range(sum(found == place for (found, _, _), _ in pairs)))
                for (place, _, _), _ in pairs
            )
            contents[name] = sorted((place, value) for (place, _, _), value in pairs)
        else:
            contents[name] = elements
    return contents


def commands(change: TableChange) -> str:
    """A change in nft's syntax."""
    return change.chain_commands + "".join(element_steps(change.elements))


@given(first=rule_sets, other=rule_sets, dropped_part=st.integers(0, 3), sticky=st.booleans())
def test_a_change_of_services_leads_where_the_difference_of_all_rules_does(
    first: RuleSet, other: RuleSet, dropped_part: int, sticky: bool
) -> None:
    """Some Services go, others come or change; everything else stays as it is."""
    if not sticky:
        first, other = (replace(it, spreads=_without_affinity(it.spreads)) for it in (first, other))
    kept = {
        name: dict(list(getattr(first, name).items())[dropped_part:]) | getattr(other, name)
        for name in ("redirects", "spreads", "masquerades")
    }
    second = like(first, replace(other, **kept, allowed_sources=first.allowed_sources))
    table, change = have(first), change_between(first, second)
    found = table_change(table, first, change)
    if found is None:
        return
    travelled, direct = NaiveKernel(), NaiveKernel()
    travelled.obey("".join(difference(None, first)))
    travelled.obey(commands(found))
    direct.obey("".join(difference(None, second)))
    assert canonical(travelled) == canonical(direct)
    assert lasting(direct.chains).keys() <= lasting(travelled.chains).keys()
    # What is believed afterwards is what is there, and leads to the same as if all rules had been compared.
    found.enter(table)
    expected = Table.of(second, after=table)
    assert (table.redirects, table.sets, table.slots, table.verdicts) == (
        expected.redirects,
        expected.sets,
        expected.slots,
        expected.verdicts,
    )
    assert table.chains == {name: tuple(comments) for name, comments in travelled.chains.items()}
    entered = changeable(first)
    entered.enter(change)
    assert entered == second
    travelled.obey("".join(difference(table, second)))
    assert canonical(travelled) == canonical(direct)
    assert lasting(travelled.chains) == lasting(direct.chains)


def _without_affinity(spreads: Mapping[Traffic, Spread]) -> dict[Traffic, Spread]:
    return {traffic: replace(spread, affinity_timeout_s=None) for traffic, spread in spreads.items()}


def _services(*numbers: int) -> RuleSet:
    """These Services, with a cluster IP and a node port; every third has no endpoint."""
    places = [
        (number, place)
        for number in numbers
        for place in (
            destination(f"10.96.{number >> 8}.{number & 255}", Protocol.TCP),
            node_port(Family.IPV4, Protocol.TCP, 30000 + number),
        )
    ]
    rules = rule_set({place: 7000 + number for number, place in places}, node_addresses=("10.2.0.1",))
    led = {number: (Target(Address("10.0.0.1"), number),) for number in numbers if number % 3}
    return replace(
        rules,
        spreads={
            Traffic(place): Spread(f"default/web-{number}", led.get(number, ()), led.get(number, ()))
            for number, place in places
        },
        masquerades={place: Masquerade.ALWAYS for number, place in places if number in led},
        refused={ProxyPort(Protocol.TCP, 7000 + number) for number in numbers if number not in led},
    )


def test_services_that_come_and_go_are_elements() -> None:
    first = _services(1, 2)
    change = table_change(have(first), first, change_between(first, _services(1, 3)))
    assert change is not None
    assert not change.chains
    assert sorted(commands(change).splitlines()) == [
        "add element inet kubeproxy guarded { tcp . 7003 }",
        "add element inet kubeproxy node_port_refusals4 { tcp . 30003 }",
        "add element inet kubeproxy node_ports4 { tcp . 30003 : 7003 }",
        "add element inet kubeproxy redirects4 { 10.96.0.3 . tcp . 80 : 7003 }",
        "add element inet kubeproxy refusals4 { 10.96.0.3 . tcp . 80 }",
        "add element inet kubeproxy refused { tcp . 7003 }",
        "add element inet kubeproxy translated4 { 10.96.0.3 . tcp . 80 }",
        "add element inet kubeproxy translated_node_ports4 { tcp . 30003 }",
        "delete element inet kubeproxy guarded { tcp . 7002 }",
        "delete element inet kubeproxy masquerades4 { 10.96.0.2 . tcp . 80 : jump masquerade_always }",
        "delete element inet kubeproxy node_port_masquerades4 { tcp . 30002 : jump masquerade_always }",
        "delete element inet kubeproxy node_port_spreads4 { tcp . 30002 : jump node_port_tcp_spread4_1 }",
        "delete element inet kubeproxy node_port_tcp_slots4 { 30002 . 0 : 10.0.0.1 . 2 }",
        "delete element inet kubeproxy node_ports4 { tcp . 30002 : 7002 }",
        "delete element inet kubeproxy redirects4 { 10.96.0.2 . tcp . 80 : 7002 }",
        "delete element inet kubeproxy spreads4 { 10.96.0.2 . tcp . 80 : jump tcp_spread4_1 }",
        "delete element inet kubeproxy tcp_slots4 { 10.96.0.2 . 80 . 0 : 10.0.0.1 . 2 }",
        "delete element inet kubeproxy translated4 { 10.96.0.2 . tcp . 80 }",
        "delete element inet kubeproxy translated_node_ports4 { tcp . 30002 }",
    ]


@pytest.mark.parametrize(
    "second",
    [
        replace(_services(1, 2), allowed_sources={WEB: frozenset({"10.0.0.0/8"})}),
        replace(_services(1, 2), redirects={**_services(1, 2).redirects, Traffic(WEB, Origin.NODE): 7001}),
        replace(
            _services(1, 2),
            redirects={**_services(1, 2).redirects, Traffic(destination("10.2.0.1", Protocol.TCP, 7001)): 7001},
        ),
        replace(
            _services(1, 2),
            spreads={**_services(1, 2).spreads, Traffic(WEB): Spread("w", (Target(Address("10.0.0.1"), 80),), (), 60)},
        ),
        _services(*range(1, 4000)),
    ],
    ids=["ranges", "the first way of this node", "a port without a guard", "affinity", "very many"],
)
def test_what_takes_other_rules_or_very_many_elements_is_no_change(second: RuleSet) -> None:
    first = _services(1)
    assert table_change(have(first), first, change_between(first, second)) is None


def _ports(spread: Spread) -> set[int]:
    return {target.port for target in spread.endpoints}


def _own_and_other(*own: Target) -> RuleSet:
    """A destination with another service port for this node than for other hosts, both with affinity."""
    where = Destination(Address("10.96.0.1"), Protocol.UDP, 1)
    others, both = TARGETS[Family.IPV4][:1], TARGETS[Family.IPV4][:2]
    return RuleSet(
        spreads={
            Traffic(where): Spread("default/dns-60:UDP", tuple(others), tuple(others), 60),
            Traffic(where, Origin.NODE): Spread("default/web-60:UDP", own, tuple(both), 60),
        },
    )


@given(first=rule_sets, second=rule_sets)
@example(first=_own_and_other(), second=_own_and_other(TARGETS[Family.IPV4][1]))
def test_other_targets_are_the_part_of_a_difference_that_concerns_them(first: RuleSet, second: RuleSet) -> None:
    """Only targets change: masquerading, redirects and the rest are those of the first."""
    changes = {each: it for each, it in second.spreads.items() if each in first.spreads}
    same = all(
        it.affinity_timeout_s == first.spreads[each].affinity_timeout_s
        and (it.service_port, it.scope) == (first.spreads[each].service_port, first.spreads[each].scope)
        # A rule of affinity for a port that no endpoint has any more stays, and leads no client.
        and (it.affinity_timeout_s is None or _ports(it) == _ports(first.spreads[each]))
        for each, it in changes.items()
    )
    before = have(first)
    change = table_change(before, first, RuleChange(changes))
    if change is None or not same:
        return
    after = replace(first, spreads={**first.spreads, **changes})
    travelled, direct = NaiveKernel(), NaiveKernel()
    travelled.obey("".join(difference(None, first)))
    travelled.obey(commands(change))
    direct.obey("".join(difference(None, after)))
    assert canonical(travelled).keys() >= canonical(direct).keys()
    assert {name: it for name, it in canonical(travelled).items() if name in direct.sets} == canonical(direct)
    assert lasting(travelled.chains) == lasting(direct.chains)
    assert direct.jumps() == travelled.jumps()
    # The table that is believed to be there afterwards leads to any other as well.
    change.enter(before)
    travelled.obey("".join(difference(before, second)))
    direct = NaiveKernel()
    direct.obey("".join(difference(None, second)))
    assert canonical(travelled) == canonical(direct)


def test_one_endpoint_of_a_thousand_costs_two_slots_and_a_jump() -> None:
    targets = tuple(Target(Address(f"10.0.{number >> 8}.{number & 255}"), 80) for number in range(1000))
    before = RuleSet(spreads={Traffic(WEB): Spread("default/web", targets, targets)})
    fewer = Spread("default/web", targets[:3] + targets[4:], targets)
    change = table_change(have(before), before, RuleChange({Traffic(WEB): fewer}))
    assert change is not None
    elements = [line.split(" { ")[1].removesuffix(" }") for line in commands(change).splitlines() if "element" in line]
    assert elements == [
        "10.96.0.1 . 80 . 3 : 10.0.0.3 . 80, 10.96.0.1 . 80 . 999 : 10.0.3.231 . 80",
        "10.96.0.1 . 80 . 3 : 10.0.3.231 . 80",
        "10.96.0.1 . tcp . 80 : jump tcp_spread4_1000",
        '10.96.0.1 . tcp . 80 comment "default/web" : jump tcp_spread4_999',
    ]


def test_one_endpoint_in_place_of_another_costs_one_slot() -> None:
    targets = tuple(Target(Address(f"10.0.{number >> 8}.{number & 255}"), 80) for number in range(1000))
    before = RuleSet(spreads={Traffic(WEB): Spread("default/web", targets, targets)})
    replaced = tuple(sorted((Target(Address("10.9.9.9"), 80), *targets[:3], *targets[4:])))
    change = table_change(have(before), before, RuleChange({Traffic(WEB): Spread("default/web", replaced, replaced)}))
    assert change is not None
    assert commands(change) == (
        "delete element inet kubeproxy tcp_slots4 { 10.96.0.1 . 80 . 3 : 10.0.0.3 . 80 }\n"
        "add element inet kubeproxy tcp_slots4 { 10.96.0.1 . 80 . 3 : 10.9.9.9 . 80 }\n"
    )


def test_without_targets_the_redirect_applies() -> None:
    target = (Target(Address("10.0.0.1"), 80),)
    before = RuleSet(redirects={Traffic(WEB): 7001}, spreads={Traffic(WEB): Spread("default/web", target, target)})
    change = table_change(have(before), before, RuleChange({Traffic(WEB): Spread("default/web", (), target)}))
    assert change is not None
    assert commands(change) == (
        "delete element inet kubeproxy tcp_slots4 { 10.96.0.1 . 80 . 0 : 10.0.0.1 . 80 }\n"
        "delete element inet kubeproxy spreads4 { 10.96.0.1 . tcp . 80 : jump tcp_spread4_1 }\n"
    )


@pytest.mark.parametrize("name", ['a"; delete table inet kubeproxy; #', "web\nflush ruleset", "n" * 300, "näme"])
def test_no_name_of_a_service_is_a_command(name: str) -> None:
    target = (Target(Address("10.0.0.1"), 80),)
    rules = RuleSet(redirects={Traffic(WEB): 7001}, spreads={Traffic(WEB): Spread(name, target, target, 60)})
    text = "".join(difference(None, rules))
    assert all(line.split()[0] in ("add", "flush") for line in text.splitlines())
    assert "delete table" not in text.replace(DELETION, "")
    assert "flush ruleset" not in text
    assert table_of(listing(rules)) == Table.of(rules)


@given(before=rule_sets, after=rule_sets, sound=st.booleans())
def test_a_pause_holds_what_leads_to_a_proxy_port_and_nothing_else_until_the_next_rules(
    before: RuleSet, after: RuleSet, sound: bool
) -> None:
    kernel, direct = NaiveKernel(), NaiveKernel()
    kernel.obey("".join(difference(None, before)))
    had = {name: dict(elements) for name, elements in kernel.sets.items()}
    steps = transaction.pause(replace(have(before), sound=sound), for_s=1.5)
    destinations = {destination for destination, _ in before.redirects}
    assert bool(steps) == bool(destinations)
    if not steps:
        return
    assert "".join(steps).count("timeout 1500ms") == len(destinations)
    kernel.obey("".join(steps))
    changed = {name for name, elements in kernel.sets.items() if elements != had.get(name, {})}
    assert sum(len(kernel.sets[name]) for name in changed if name.startswith("paused")) == len(destinations)
    assert not any(kernel.sets[name] for name in LEADING_TO_PROXY_PORTS)
    if sound:
        assert all(name.startswith("paused") or name in LEADING_TO_PROXY_PORTS for name in changed)
    else:
        filled = {name for name, elements in kernel.sets.items() if elements}
        assert all(name.startswith(("paused", "node_addresses")) for name in filled)
    waiting = have(before) if sound else have(replace(RuleSet(), node_addresses=before.node_addresses))
    waiting = replace(
        waiting,
        chains={name: tuple(rules) for name, rules in kernel.chains.items()},
        redirects={},
        sets={name: frozenset() if name in LEADING_TO_PROXY_PORTS else it for name, it in waiting.sets.items()},
        paused=True,
    )
    assert transaction.pause(waiting, for_s=1.5) == []
    kernel.obey("".join(difference(waiting, after)))
    direct.obey("".join(difference(None, after)))
    assert canonical(kernel) == canonical(direct)
    assert lasting(kernel.chains) == lasting(direct.chains)


LEADING_TO_PROXY_PORTS = {*REDIRECTS, "guarded", "unguarded", "refused", "dropped"}


def listed_entry(text: str, value: str) -> Entry:
    """An element as it is listed, of its text and its value in a command."""
    key, _, comment = text.partition(" comment ")
    fields = tuple(listed_field(field) for field in key.split(" . "))
    if value.startswith("jump "):
        return Entry(fields, value.removeprefix("jump "), comment.strip('"'))
    match [listed_field(field) for field in value.split(" . ") if field]:
        case [str(address), int(port)]:
            return Entry(fields, Target(Address(address), port))
        case [found]:
            return Entry(fields, found)
    return Entry(fields)


def listed_field(field: str) -> str | int:
    """A field of a key or value as it is listed."""
    return int(field) if field.isdigit() else {"tcp": Protocol.TCP, "udp": Protocol.UDP}.get(field, field)


def listing(rules: RuleSet) -> Listing:
    """A table as it is listed: what its kernel makes of the commands for a new table."""
    kernel = NaiveKernel()
    kernel.obey("".join(difference(None, rules)))

    def kind(name: str) -> Kind:
        return KINDS[name] if name in KINDS else CLIENTS[Family(int(name.removeprefix("clients")[0]))]

    sets = {
        name: Listed(kind(name).listed, [listed_entry(key, value) for key, value in elements.items()])
        for name, elements in kernel.sets.items()
    }

    def slots(name: str, where: Element, count: int) -> PackedTargets:
        there = {entry.key: entry.value for entry in sets[name].entries if isinstance(entry.value, Target)}
        found = [packed_target(there[(*where, number)]) for number in range(count)]
        return PackedTargets(b"".join(found), KINDS[name].family)

    return Listing(
        sets=sets,
        chains={name: {**HOOKS, DIVERT: DIVERT_HOOK}.get(name) for name in kernel.chains},
        comments={name: tuple(made) for name, made in kernel.chains.items()},
        slots=slots,
    )


FULL = rule_set(
    {WEB: 7001, DNS: 7002, WEB6: 7003, NODE_PORT: 7001, NODE_PORT6: 7003},
    refused={ProxyPort(Protocol.TCP, 7001)},
    dropped={ProxyPort(Protocol.UDP, 7002)},
    own={WEB: 7004, NODE_PORT: 7005},
    node_addresses=("10.2.0.1", "127.0.0.1", "fd00:2::1"),
    internal=("10.3.0.0/16", "10.9.9.9", "fd00:3::/32"),
    allowed={WEB: ("10.0.0.0/8", "10.7.0.0/16", "192.0.2.1/32"), WEB6: ("::ffff:0:0/96", "10.0.0.0/8")},
    landing=("10.2.0.1",),
)
FULL = replace(
    FULL,
    spreads={
        Traffic(WEB): Spread("default/web:http", tuple(TARGETS[Family.IPV4]), tuple(TARGETS[Family.IPV4]), 60),
        Traffic(WEB6): Spread("default/web:http", tuple(TARGETS[Family.IPV6]), tuple(TARGETS[Family.IPV6]), 60),
        Traffic(NODE_PORT): Spread("default/web:http", tuple(TARGETS[Family.IPV4]), tuple(TARGETS[Family.IPV4]), 60),
        Traffic(DNS): Spread("kube-system/dns", tuple(TARGETS[Family.IPV4][:3]), tuple(TARGETS[Family.IPV4])),
        Traffic(NODE_PORT6): Spread("kube-system/dns", (), tuple(TARGETS[Family.IPV6])),
        Traffic(NODE_PORT, Origin.NODE): Spread(
            "default/web:http", tuple(TARGETS[Family.IPV4][2:]), tuple(TARGETS[Family.IPV4])
        ),
    },
    masquerades={WEB: Masquerade.OUTSIDE, NODE_PORT: Masquerade.ALWAYS, WEB6: Masquerade.NODE},
    hairpins={Address("10.0.0.1"), Address("fd00:9::1")},
    direct_links=frozenset(
        {
            DirectLink(2, "eth0", "10.0.0.0/24"),
            DirectLink(4, "cni0", "10.1.0.0/16"),
            DirectLink(4, "cni0", "fd00:9::/64"),
        }
    ),
)


def test_what_is_listed_is_recognized() -> None:
    assert table_of(listing(FULL)) == Table.of(FULL)


@pytest.mark.parametrize(
    "fault",
    [
        "no chain",
        "another priority",
        "policy drop",
        "no set",
        "a set of another type",
        "a chain more",
        "no such key",
        "a slot less",
    ],
)
def test_a_table_of_another_version_is_made_anew(fault: str) -> None:
    found = listing(FULL)
    chains, sets = dict(found.chains), dict(found.sets)
    kind, hook, priority, policy = chains["prerouting"] or ("", "", 0, "")
    match fault:
        case "no chain":
            del chains["prerouting"]
        case "another priority":
            chains["prerouting"] = (kind, hook, -100, policy)
        case "policy drop":
            chains["prerouting"] = (kind, hook, priority, "drop")
        case "no set":
            del sets["refused"]
        case "a set of another type":
            sets["refused"] = Listed((["inet_service"], None, None), sets["refused"].entries)
        case "a chain more":
            chains["mine"] = (kind, "forward", priority, policy)
        case "no such key":
            sets["redirects4"] = Listed(sets["redirects4"].declared, [Entry(("10.96.0.1", "sctp6", 80), 7001)])
        case "a slot less":
            sets["spreads6"] = Listed(
                sets["spreads6"].declared, [it._replace(value="tcp_spread6_99") for it in sets["spreads6"].entries]
            )
    steps = difference(table_of(replace(found, sets=sets, chains=chains)), FULL)
    assert steps[0].startswith(DELETION + "add table inet kubeproxy\n")
    assert steps[1:] == difference(None, FULL)[1:]


@pytest.mark.parametrize("how", ["missing", "doubled", "foreign", "out of order"])
def test_rules_changed_by_another_program_are_restored(how: str) -> None:
    found = listing(FULL)
    first, *others = guards = found.comments["guard"]
    changed = {
        "missing": others,
        "doubled": [*guards, first],
        "foreign": [*guards, "mine"],
        "out of order": [*others, first],
    }
    listed = replace(found, comments={**found.comments, "guard": tuple(changed[how])})
    (step,) = difference(table_of(listed), FULL)
    assert step.startswith("flush chain inet kubeproxy guard\n")
    assert step.count("add rule") == len(guards)


def test_stale_elements_are_removed() -> None:
    rest = replace(
        FULL,
        redirects={Traffic(WEB): 7001},
        proxy_ports={ProxyPort(Protocol.TCP, 7001)},
        refused=set(),
        dropped=set(),
    )
    steps = difference(table_of(listing(FULL)), rest)
    text = "".join(steps)
    assert "delete element inet kubeproxy own_node_ports4 { tcp . 30080 : 7005 }" in text
    assert "delete element inet kubeproxy redirects6 { fd96::1 . tcp . 80 : 7003 }" in text
    assert "delete element inet kubeproxy dropped { udp . 7002 }" in text
    assert "add element" not in text


def test_a_pause_is_recognized_and_so_are_the_redirects_of_another_version() -> None:
    found = listing(FULL)
    paused = Listed(KINDS["paused4"].listed, [Entry(("10.96.0.1", Protocol.TCP, 80))])
    table = table_of(replace(found, sets={**found.sets, "paused4": paused}))
    assert table == replace(Table.of(FULL), paused=True)
    (flush,) = difference(table, FULL)
    assert "flush set inet kubeproxy paused4\n" in flush
    without = {name: kind for name, kind in found.sets.items() if not name.startswith(("paused", "guarded"))}
    table = table_of(replace(found, sets=without))
    assert not table.sound
    assert table.redirects == FULL.redirects
    assert difference(table, FULL)[1:] == difference(None, FULL)[1:]


def test_sockets_are_guarded_last_and_only_where_asked_for() -> None:
    guard = [rule.text for rule in rules_of(replace(FULL, guard_sockets=True))["guard"]]
    assert guard[-2:] == ["socket transparent 1 return", "meta l4proto . th dport != @unguarded drop"]
    assert guard[:-2] == [rule.text for rule in rules_of(FULL)["guard"]]


def test_the_chain_for_answers_to_clients_addresses_comes_and_goes() -> None:
    """Even an empty chain costs every packet of this host time."""
    without = RuleSet(redirects={Traffic(WEB): 7001})
    transparent = replace(without, transparent=True)
    chain = "add chain inet kubeproxy divert { type filter hook prerouting priority -150; policy accept; }\n"
    assert chain not in "".join(difference(None, without))
    steps = difference(have(without), transparent)
    assert steps[0] == chain
    assert [step.split()[:2] for step in steps[1:]] == [["flush", "chain"]]
    assert "socket transparent 1" in steps[1]
    assert difference(have(transparent), without) == [
        "flush chain inet kubeproxy divert\ndelete chain inet kubeproxy divert\n"
    ]
    full = replace(FULL, transparent=True)
    assert table_of(listing(full)) == Table.of(full)
    found = listing(full)
    assert not table_of(
        replace(found, chains={**found.chains, "divert": ("filter", "prerouting", -100, "accept")})
    ).sound


def test_first_packets_meet_no_rule_that_no_destination_needs() -> None:
    target = (Target(Address("10.0.0.1"), 80),)
    bare = replace(rule_set({WEB: 7001}), spreads={Traffic(WEB): Spread("default/web", target, target)}, rescue=7)

    def texts(rules: RuleSet) -> str:
        return "\n".join(rule.text for chain in rules_of(rules).values() for rule in chain)

    own, own_port = ({**bare.redirects, Traffic(to, Origin.NODE): 7001} for to in (WEB, NODE_PORT6))
    for name, more in (
        ("@own_redirects4", replace(bare, redirects=own)),
        ("@own_spreads4", replace(bare, redirects=own)),
        ("@own_node_ports6", replace(bare, redirects=own_port)),
        (
            "@own_node_port_spreads6",
            replace(bare, redirects=own_port),
        ),
        ("@masquerades4", replace(bare, masquerades={WEB: Masquerade.NODE})),
        ("@node_port_masquerades6", replace(bare, masquerades={NODE_PORT6: Masquerade.ALWAYS})),
    ):
        assert name not in texts(bare)
        assert name in texts(more)
        (flush, *_), back = difference(have(bare), more), difference(have(more), bare)
        assert flush.startswith("flush chain"), "the rules come with the first destination"
        assert name not in "".join(line for line in "".join(back).splitlines() if line.startswith("add"))


def test_clients_are_remembered_for_each_scope_by_itself() -> None:
    """Where a destination has two, what decides on a client's way decides where the client is kept, too."""
    chains = {
        name: [rule.text for rule in rules]
        for name, rules in affinity_chains(_local_policy().spreads, rescued=False).items()
    }
    assert set(chains) == {
        f"{kind}4-default/web-60/TCP{scope}" for kind in ("sticky", "learn") for scope in ("", ".external")
    }
    assert chains["learn4-default/web-60/TCP.external"][:2] == [
        "ct original ip saddr @internal_sources4 goto learn4-default/web-60/TCP",
        "fib saddr type local goto learn4-default/web-60/TCP",
    ]
    key = ("learned4", WEB)
    assert Table.of(_local_policy()).verdicts[key] == "learn4-default/web-60/TCP.external"


def test_packets_of_running_connections_meet_few_chains() -> None:
    """The kernel calls a chain of type nat for the first packet of a flow only."""
    target = (Target(Address("10.0.0.1"), 80),)
    rules = replace(rule_set({WEB: 7001}), spreads={Traffic(WEB): Spread("default/web", target, target)}, rescue=7)
    made = re.findall(
        r"^add chain inet kubeproxy (\S+) \{ type filter hook (\S+) ", "".join(difference(None, rules)), re.M
    )
    assert sorted(made) == [("input", "input"), ("rescue_output", "output"), ("rescue_prerouting", "prerouting")]


def test_rescue_rules_come_and_go() -> None:
    """Another group of the packet log replaces rules only; without one nothing of them is left."""
    without = RuleSet(redirects={Traffic(WEB): 7001})
    first, second = replace(without, rescue=7), replace(without, rescue=8)
    steps = "".join(difference(Table.of(without), first))
    assert "add chain inet kubeproxy rescue_copy4\n" in steps
    assert "log group 7 " in steps
    assert difference(Table.of(first), first) == []
    steps = "".join(difference(Table.of(first), second))
    assert "add chain" not in steps
    assert "log group 8 " in steps
    steps = "".join(difference(Table.of(second), without))
    for name in (*rescue.HOOKS, *rescue.SETS, "rescue4", "rescue6"):
        assert f" {name}\n" in steps
    assert "log group" not in steps
