"""The rule set: scopes, source ranges, node ports, and destinations that several Services claim."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Family,
    Frontend,
    Origin,
    Protocol,
    Scope,
    Traffic,
    Verdict,
)
from kubeproxy.netfilter.ruleset import DirectLink, ProxyPort, RuleSet
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from kubeproxy.proxier.node import NodeFacts, Preserve
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import ProxierSettings
from tests.proxier.builders import destination, frontend_name, targets

VIP = destination("198.51.100.1:80")
NODE_PORT = Destination(NODE_PORTS[Family.IPV4], Protocol.TCP, 30080)
ENDPOINTS = targets("10.0.0.1:8080")
ANYWHERE, ON_NODE = Traffic(VIP), Traffic(VIP, Origin.NODE)


def frontend(
    service: str,
    *destinations: Destination,
    scope: Scope = Scope.CLUSTER,
    own: tuple[Destination, ...] = (),
    ranged: tuple[Destination, ...] = (),
    ranges: tuple[str, ...] = (),
) -> Frontend:
    return Frontend(
        name=frontend_name(service)._replace(scope=scope),
        protocol=Protocol.TCP,
        destinations={**dict.fromkeys(destinations, Origin.ANYWHERE), **dict.fromkeys(own, Origin.NODE)},
        ranged=frozenset(ranged),
        source_ranges=frozenset(ranges),
        endpoints=ENDPOINTS,
    )


def apart(service: str) -> tuple[Frontend, Frontend]:
    """The frontends of a Service with externalTrafficPolicy Local."""
    return frontend(service, own=(VIP,)), frontend(service, VIP, scope=Scope.EXTERNAL)


def test_scopes_lead_to_proxy_ports_of_their_own() -> None:
    cluster, external = apart("web")
    rules = RuleSetBuilder()
    rules.put(cluster, 40001)
    rules.put(external, 40002)
    ruleset = rules.ruleset()
    assert ruleset.redirects == {ANYWHERE: 40002, ON_NODE: 40001}
    assert ruleset.proxy_ports == {ProxyPort(Protocol.TCP, 40001), ProxyPort(Protocol.TCP, 40002)}
    assert not rules.claims.contests()


def test_refused_and_dropped_differ() -> None:
    rules = RuleSetBuilder()
    rules.put(replace(frontend("web", VIP), endpoints=()), 40001)
    rules.put(replace(apart("shop")[1], endpoints=(), when_empty=Verdict.DROP), 40002)
    assert rules.ruleset().refused == {ProxyPort(Protocol.TCP, 40001)}
    assert rules.ruleset().dropped == {ProxyPort(Protocol.TCP, 40002)}


def test_the_first_service_keeps_a_destination_in_every_scope() -> None:
    rules = RuleSetBuilder()
    rules.put(frontend("web", VIP), 40001)
    cluster, external = apart("shop")
    rules.put(cluster, 40002)
    rules.put(external, 40003)
    assert rules.ruleset().redirects == {ANYWHERE: 40001}
    (contest,) = rules.claims.contests()
    assert (contest.holder.service_port.name, [n.service_port.name for n in contest.others]) == ("web", ["shop"])
    rules.remove(frontend("web", VIP).name)
    assert rules.ruleset().redirects == {ANYWHERE: 40003, ON_NODE: 40002}
    assert not rules.claims.contests()


def test_the_holder_stays_when_its_policy_changes() -> None:
    cluster, external = apart("web")
    for order in itertools.permutations([(cluster, 40001), (external, 40002)]):
        rules = RuleSetBuilder()
        rules.put(frontend("web", VIP), 40001)
        rules.put(frontend("shop", VIP), 40009)
        for one, port in order:
            rules.put(one, port)
        assert rules.ruleset().redirects == {ANYWHERE: 40002, ON_NODE: 40001}
        rules.put(frontend("web", VIP), 40001)
        rules.remove(external.name)
        assert rules.ruleset().redirects == {ANYWHERE: 40001}
        assert [contest.holder.service_port.name for contest in rules.claims.contests()] == ["web"]


def test_overlapping_node_ports_go_to_the_first() -> None:
    rules = RuleSetBuilder()
    rules.put(frontend("web", NODE_PORT), 40001)
    rules.put(frontend("shop", NODE_PORT, VIP), 40002)
    assert rules.ruleset().redirects == {Traffic(NODE_PORT): 40001, ANYWHERE: 40002}
    assert [contest.destination for contest in rules.claims.contests()] == [NODE_PORT]


def test_source_ranges_come_and_go_with_the_holder() -> None:
    rules = RuleSetBuilder()
    ranged = frontend("web", VIP, NODE_PORT, ranged=(VIP,), ranges=("192.0.2.0/24",))
    rules.put(ranged, 40001)
    rules.put(frontend("shop", VIP), 40002)
    assert rules.ruleset().allowed_sources == {VIP: {"192.0.2.0/24"}}
    rules.put(replace(ranged, source_ranges=frozenset({"192.0.2.0/25"})), 40001)
    assert rules.ruleset().allowed_sources == {VIP: {"192.0.2.0/25"}}
    rules.remove(ranged.name)
    assert not rules.ruleset().allowed_sources


def test_source_ranges_hold_for_our_own_packets_alone_too() -> None:
    rules = RuleSetBuilder()
    rules.put(frontend("web", own=(VIP,), ranged=(VIP,), ranges=("192.0.2.0/24",)), 40001)
    assert rules.ruleset().allowed_sources == {VIP: {"192.0.2.0/24"}}


def test_the_node_is_part_of_the_rules() -> None:
    rules = RuleSetBuilder()
    facts = NodeFacts(
        name="us", node_addresses=frozenset({Address("192.0.2.1")}), internal_sources=frozenset({"10.0.0.0/8"})
    )
    rules.use(ProxierSettings(facts=facts))
    assert rules.generation == 1
    assert rules.ruleset().node_addresses == facts.node_addresses
    assert rules.ruleset().internal_sources == facts.internal_sources
    rules.use(ProxierSettings(facts=replace(facts, zone="z1")))
    assert rules.generation == 1
    shared = replace(facts, direct_links=frozenset({DirectLink(2, "eth0", "192.0.2.0/24")}))
    rules.use(ProxierSettings(facts=shared))
    assert rules.ruleset().direct_links == frozenset(), "only the kernel path needs them"
    kernel = DataPathPolicy(wanted=Wanted.KERNEL)
    rules.use(ProxierSettings(facts=shared, data_path=kernel))
    assert rules.ruleset().direct_links == shared.direct_links
    generation = rules.generation
    rules.use(ProxierSettings(facts=facts, data_path=kernel))
    assert rules.ruleset().direct_links == frozenset()
    assert rules.generation > generation


def test_routing_is_there_before_a_client_address_is_preserved() -> None:
    cluster, external = apart("web")
    expected = {
        Preserve.NEVER: (False, False, False),
        Preserve.EXTERNAL_LOCAL: (False, False, True),
        Preserve.LOCAL: (False, True, True),
    }
    for preserve, transparent in expected.items():
        rules = RuleSetBuilder()
        rules.use(ProxierSettings(facts=NodeFacts(preserve=preserve)))
        seen = [rules.ruleset().transparent]
        for one in (cluster, external):
            rules.put(one, 40001)
            seen.append(rules.ruleset().transparent)
        assert tuple(seen) == transparent
        rules.remove(external.name)
        rules.remove(cluster.name)
        # And it stays: connections outlive their frontend.
        assert rules.ruleset().transparent == transparent[-1]
        rules.use(ProxierSettings(facts=NodeFacts(preserve=Preserve.NEVER)))
        assert not rules.ruleset().transparent


def test_after_the_last_removal_nothing_is_left() -> None:
    rules = RuleSetBuilder()
    all_candidates = [*apart("web"), frontend("shop", VIP, NODE_PORT, ranged=(VIP,), ranges=("192.0.2.0/24",))]
    for order in itertools.permutations(all_candidates):
        for number, one in enumerate(all_candidates):
            rules.put(one, 40001 + number)
        for one in order:
            rules.remove(one.name)
        assert rules.ruleset() == RuleSet()
        assert VIP not in rules.claims
        assert not rules.claims.contests()
