"""The nftables table as a value: its text, its parser, and its differences."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address, Destination, Family, Protocol
from kubeproxy.netfilter.nftables import table
from kubeproxy.netfilter.nftables.table import Table, difference, parse, rules_of
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.stage import destination, node_port, rule_set

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
        have(RuleSet(redirects={WEB: 7001})),
        RuleSet(redirects={WEB: 7002}),
    )
    assert step == (
        "delete element inet kubeproxy redirects4 { 10.96.0.1 . tcp . 80 : 7001 }\n"
        "add element inet kubeproxy redirects4 { 10.96.0.1 . tcp . 80 : 7002 }\n"
    )


def test_refusing_touches_no_redirect() -> None:
    serving = rule_set({WEB: 7001})
    port = frozenset({ProxyPort(Protocol.TCP, 7001)})
    assert difference(have(serving), replace(serving, refused=port)) == [
        "add element inet kubeproxy refused { tcp . 7001 }\n"
    ]
    assert difference(have(replace(serving, refused=port)), replace(serving, dropped=port)) == [
        "add element inet kubeproxy dropped { tcp . 7001 }\n",
        "delete element inet kubeproxy refused { tcp . 7001 }\n",
    ]


def test_another_landing_address_replaces_the_rules_of_one_chain() -> None:
    (step,) = difference(have(rule_set({WEB: 7001})), rule_set({WEB: 7001}, landing=("10.2.0.1",)))
    assert step.startswith("flush chain inet kubeproxy prerouting\n")
    assert "dnat ip to 10.2.0.1 : ip daddr" in step
    assert "flush chain inet kubeproxy output" not in step


def test_landing_applies_to_other_hosts_and_bind_to_all() -> None:
    landing = rules_of(rule_set({}, landing=("10.2.0.1", "fd00::1")))
    assert {rule.text.split(" } ")[1].split(" : ")[0] for rule in landing["prerouting"] if "drop" not in rule.text} == {
        "dnat ip to 10.2.0.1",
        "dnat ip6 to fd00::1",
    }
    assert all(
        any(verdict in rule.text for verdict in ("redirect to :", "drop", "return")) for rule in landing["output"]
    )
    bound = rules_of(rule_set({}, landing=("10.2.0.1",), bind=("10.9.9.9",)))
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
    redirects = {destination(f"10.{i >> 8}.{i & 255}.1", Protocol.TCP): 7001 for i in range(2500)}
    steps = difference(have(RuleSet()), RuleSet(redirects=redirects))
    assert [step.count("tcp") for step in steps] == [1000, 1000, 500]


destinations = st.builds(
    Destination,
    st.sampled_from(["10.96.0.1", "10.2.0.1", "0.0.0.0", "fd96::1", "fd00::1", "::"]).map(Address),
    st.sampled_from([Protocol.TCP, Protocol.UDP]),
    st.sampled_from([1, 2, 7001]),
)
addresses = st.sampled_from(["10.2.0.1", "127.0.0.1", "fd00::1", "::1"]).map(Address)
cidrs = st.frozensets(st.sampled_from(["10.3.0.0/16", "10.3.7.0/24", "10.4.0.0/16", "10.9.9.9/32", "fd00:3::/32"]))
proxy_ports = st.frozensets(
    st.builds(ProxyPort, st.sampled_from([Protocol.TCP, Protocol.UDP]), st.integers(7001, 7003))
)
rule_sets = st.builds(
    RuleSet,
    redirects=st.dictionaries(destinations, st.integers(7001, 7003)),
    own_redirects=st.dictionaries(destinations, st.integers(7001, 7003), max_size=2),
    internal_sources=cidrs,
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

    def obey(self, commands: str) -> None:
        for line in commands.splitlines():
            words = line.split(" ", 4)
            match words[:2]:
                case ["delete", "table"]:
                    self.sets.clear()
                case ["add", "set" | "map"]:
                    self.sets[words[4].split()[0]] = {}
                case ["flush", "set" | "map"]:
                    self.sets[words[4]].clear()
                case [verb, "element"]:
                    name, _, body = words[4].partition(" { ")
                    for element in body.removesuffix(" }").split(", "):
                        element, _, timeout = element.partition(" timeout ")
                        assert bool(timeout) == name.startswith("paused")
                        key, _, value = element.partition(" : ")
                        if verb == "add":
                            assert self.sets[name].get(key, value) == value, "EEXIST"
                            self.sets[name][key] = value
                        else:
                            assert self.sets[name].pop(key) == value, "ENOENT"
                case _:
                    pass


@given(first=rule_sets, second=rule_sets)
def test_differences_lead_from_any_rule_set_to_any_other(first: RuleSet, second: RuleSet) -> None:
    travelled, direct = NaiveKernel(), NaiveKernel()
    travelled.obey("".join(difference(None, first)))
    travelled.obey("".join(difference(have(first), second)))
    direct.obey("".join(difference(None, second)))
    assert travelled.sets == direct.sets


@given(before=rule_sets, after=rule_sets, sound=st.booleans())
def test_a_pause_holds_every_destination_and_nothing_else_until_the_next_rules(
    before: RuleSet, after: RuleSet, sound: bool
) -> None:
    kernel, direct = NaiveKernel(), NaiveKernel()
    kernel.obey("".join(difference(None, before)))
    steps = table.pause(replace(have(before), sound=sound), for_s=1.5)
    destinations = {*before.redirects, *before.own_redirects}
    assert bool(steps) == bool(destinations)
    if not steps:
        return
    assert "".join(steps).count("timeout 1500ms") == len(destinations)
    kernel.obey("".join(steps))
    filled = {name for name, elements in kernel.sets.items() if elements}
    assert all(name.startswith(("paused", "node_addresses")) for name in filled)
    assert sum(len(kernel.sets[name]) for name in filled if name.startswith("paused")) == len(destinations)
    kept = {name: elements for name, elements in have(before).sets.items() if name.startswith("node_addresses")}
    waiting = replace(have(RuleSet()), chains={}, sets={**have(RuleSet()).sets, **kept}, paused=True)
    assert table.pause(waiting, for_s=1.5) == []
    kernel.obey("".join(difference(waiting, after)))
    direct.obey("".join(difference(None, after)))
    assert kernel.sets == direct.sets


PORT = ["inet_proto", "inet_service"]


def prefixed(cidr: str) -> Any:
    """A range as nft lists it."""
    address, _, length = cidr.partition("/")
    # libc's way with such addresses, which is nft's.
    address = "::ffff:0.0.0.0" if address == "::ffff:0:0" else address
    return {"prefix": {"addr": address, "len": int(length)}} if length else address


def listing(rules: RuleSet) -> list[dict[str, Any]]:
    """A table as nft lists it."""
    of = {"table": "kubeproxy", "family": "inet", "handle": 1}
    items: list[dict[str, Any]] = [
        {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
        {"table": {"family": "inet", "name": "kubeproxy", "handle": 1}},
    ]
    for prefix, redirects in (("own_redirects", rules.own_redirects), ("redirects", rules.redirects)):
        for number, address in ((4, "ipv4_addr"), (6, "ipv6_addr")):
            elements = [
                [{"concat": [key.address, key.protocol.lower(), key.port]}, port]
                for key, port in redirects.items()
                if (":" in key.address) is (number == 6) and key.address not in ("0.0.0.0", "::")
            ]
            kind = {"name": f"{prefix}{number}", "type": [address, *PORT], "map": "inet_service"}
            items.append({"map": of | kind | ({"elem": elements} if elements else {})})
            elements = [
                [{"concat": [key.protocol.lower(), key.port]}, port]
                for key, port in redirects.items()
                if key.address == ("::" if number == 6 else "0.0.0.0")
            ]
            kind = {"name": f"{prefix.replace('redirects', 'node_ports')}{number}", "type": PORT, "map": "inet_service"}
            items.append({"map": of | kind | ({"elem": elements} if elements else {})})
    for name in ("guarded", "unguarded", "refused", "dropped"):
        elem = [{"concat": [port.protocol.lower(), port.port]} for port in getattr(rules, name)]
        items.append({"set": of | {"name": name, "type": PORT, "elem": elem}})
    for number, address in ((4, "ipv4_addr"), (6, "ipv6_addr")):
        found = [it for it in sorted(rules.node_addresses) if (":" in it) is (number == 6)]
        items.append({"set": of | {"name": f"node_addresses{number}", "type": address, "elem": found}})
        sources = [prefixed(it) for it in sorted(rules.internal_sources) if (":" in it) is (number == 6)]
        kind = {"name": f"internal_sources{number}", "type": address, "flags": ["interval"], "elem": sources}
        items.append({"set": of | kind})
        admitted = [
            {"concat": [key.address, key.protocol.lower(), key.port, prefixed(source)]}
            for key, sources in rules.admitted.items()
            for source in sources
            if (":" in key.address) is (number == 6)
        ]
        kind = {"name": f"admitted{number}", "type": [address, *PORT, address], "flags": ["interval"]}
        items.append({"set": of | kind | {"elem": admitted}})
        restricted = [
            {"concat": [key.address, key.protocol.lower(), key.port]}
            for key in rules.allowed_sources
            if (":" in key.address) is (number == 6)
        ]
        items.append({"set": of | {"name": f"restricted{number}", "type": [address, *PORT], "elem": restricted}})
        for name, kinds in ((f"paused{number}", [address, *PORT]), (f"paused_ports{number}", PORT)):
            items.append({"set": of | {"name": name, "type": kinds, "flags": ["timeout"]}})
    for name, hook, kind_, prio in (
        ("divert", "prerouting", "filter", -150),
        ("prerouting", "prerouting", "nat", -105),
        ("output", "output", "nat", -105),
        ("input", "input", "filter", -5),
    ):
        items.append({"chain": of | {"name": name, "type": kind_, "hook": hook, "prio": prio, "policy": "accept"}})
    items.append({"chain": of | {"name": "guard"}})
    for chain, made in rules_of(rules).items():
        items += [{"rule": of | {"chain": chain, "comment": rule.comment, "expr": []}} for rule in made]
    return items


def encode(items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"nftables": items}).encode()


FULL = rule_set(
    {WEB: 7001, DNS: 7002, WEB6: 7003, NODE_PORT: 7001, NODE_PORT6: 7003},
    refused=frozenset({ProxyPort(Protocol.TCP, 7001)}),
    dropped=frozenset({ProxyPort(Protocol.UDP, 7002)}),
    own={WEB: 7004, NODE_PORT: 7005},
    node_addresses=("10.2.0.1", "127.0.0.1", "fd00:2::1"),
    internal=("10.3.0.0/16", "10.9.9.9", "fd00:3::/32"),
    allowed={WEB: ("10.0.0.0/8", "10.7.0.0/16", "192.0.2.1/32"), WEB6: ("::ffff:0:0/96", "10.0.0.0/8")},
    landing=("10.2.0.1",),
)


def test_what_is_listed_is_recognized() -> None:
    assert parse(encode(listing(FULL))) == Table.of(FULL)


@pytest.mark.parametrize(
    "fault",
    ["no chain", "another priority", "policy drop", "no set", "a set of another type", "a chain more", "a timeout"],
)
def test_a_table_of_another_version_is_made_anew(fault: str) -> None:
    items = listing(FULL)
    chain = next(item["chain"] for item in items if "chain" in item)
    refused = next(item["set"] for item in items if "set" in item and item["set"]["name"] == "refused")
    match fault:
        case "no chain":
            items = [item for item in items if item.get("chain") is not chain]
        case "another priority":
            chain["prio"] = -100
        case "policy drop":
            chain["policy"] = "drop"
        case "no set":
            items = [item for item in items if item.get("set") is not refused]
        case "a set of another type":
            refused["type"] = ["inet_service"]
        case "a chain more":
            items.append({"chain": chain | {"name": "mine", "hook": "forward"}})
        case "a timeout":
            refused["elem"] = [{"elem": {"val": refused["elem"][0], "timeout": 30}}]
    steps = difference(parse(encode(items)), FULL)
    assert steps[0].startswith(table.DELETION + "add table inet kubeproxy\n")
    assert steps[1:] == difference(None, FULL)[1:]


@pytest.mark.parametrize("how", ["missing", "doubled", "foreign", "out of order"])
def test_rules_changed_by_another_program_are_restored(how: str) -> None:
    items = listing(FULL)
    guards = [item for item in items if item.get("rule", {}).get("chain") == "guard"]
    match how:
        case "missing":
            items.remove(guards[0])
        case "doubled":
            items.append(guards[0])
        case "foreign":
            items.append({"rule": guards[0]["rule"] | {"comment": "mine"}})
        case "out of order":
            items.remove(guards[0])
            items.append(guards[0])
    (step,) = difference(parse(encode(items)), FULL)
    assert step.startswith("flush chain inet kubeproxy guard\n")
    assert step.count("add rule") == len(guards)


def test_stale_elements_are_removed() -> None:
    rest = replace(
        FULL,
        redirects={WEB: 7001},
        own_redirects={},
        proxy_ports=frozenset({ProxyPort(Protocol.TCP, 7001)}),
        refused=frozenset(),
        dropped=frozenset(),
    )
    steps = difference(parse(encode(listing(FULL))), rest)
    text = "".join(steps)
    assert "delete element inet kubeproxy own_node_ports4 { tcp . 30080 : 7005 }" in text
    assert "delete element inet kubeproxy redirects6 { fd96::1 . tcp . 80 : 7003 }" in text
    assert "delete element inet kubeproxy dropped { udp . 7002 }" in text
    assert "add" not in text


def test_a_pause_is_recognized_and_so_are_the_redirects_of_another_version() -> None:
    items = listing(FULL)
    paused = next(item["set"] for item in items if item.get("set", {}).get("name") == "paused4")
    paused["elem"] = [{"elem": {"val": {"concat": ["10.96.0.1", "tcp", 80]}, "timeout": 30, "expires": 7}}]
    assert parse(encode(items)) == replace(Table.of(FULL), paused=True)
    (flush,) = difference(parse(encode(items)), FULL)
    assert "flush set inet kubeproxy paused4\n" in flush
    items = [item for item in items if not item.get("set", {}).get("name", "").startswith(("paused", "guarded"))]
    found = parse(encode(items))
    assert not found.sound
    assert (found.redirects, found.own_redirects) == (FULL.redirects, FULL.own_redirects)
    assert difference(found, FULL)[1:] == difference(None, FULL)[1:]


def test_sockets_are_guarded_last_and_only_where_asked_for() -> None:
    guard = [rule.text for rule in rules_of(replace(FULL, guard_sockets=True))["guard"]]
    assert guard[-2:] == ["socket transparent 1 return", "meta l4proto . th dport != @unguarded drop"]
    assert guard[:-2] == [rule.text for rule in rules_of(FULL)["guard"]]


def test_what_nft_never_prints_is_an_error() -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse(b"<html>")
