"""The selection of endpoints: as a table, exhaustively over conditions, and against a naive model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address, Endpoint, EndpointSlice, Family, Target
from kubeproxy.proxier.endpoint_selection import Candidate, candidates, choose
from kubeproxy.proxier.node import NodeFacts
from tests.proxier.builders import endpoint_slice, port, targets

US = NodeFacts(name="us", zone="z1")
NAMELESS, ZONELESS = NodeFacts(zone="z1"), NodeFacts(name="us")

READY, LEAVING, GONE, UNREADY = "ready", "leaving", "gone", "unready"
CONDITIONS = {
    READY: (True, True, False),
    LEAVING: (False, True, True),
    GONE: (False, False, True),
    UNREADY: (False, True, False),
}


def ep(number: int, state: str = READY, *, node: str = "", zones: str = "", nodes: str = "") -> Endpoint:
    ready, serving, terminating = CONDITIONS[state]
    return Endpoint(
        Address(f"10.0.0.{number}"),
        ready=ready,
        serving=serving,
        terminating=terminating,
        node=node,
        zone_hints=frozenset(zones.split()),
        node_hints=frozenset(nodes.split()),
    )


def numbered(all_candidates: tuple[Target, ...]) -> list[int]:
    return [int(target.address.rpartition(".")[2]) for target in all_candidates]


@pytest.mark.parametrize(
    ("why", "facts", "endpoints", "cluster_wide", "local"),
    [
        ("no endpoints", US, [], [], []),
        # Hints for zones.
        (
            "allotted by zone",
            US,
            [ep(1, zones="z1"), ep(2, zones="z2"), ep(3, zones="z3"), ep(4, zones="z1")],
            [1, 4],
            [],
        ),
        (
            "an endpoint for several zones",
            US,
            [ep(1, zones="z1 z2"), ep(2, zones="z2"), ep(3, zones="z2 z1")],
            [1, 3],
            [],
        ),
        ("one has no hint", US, [ep(1, zones="z1"), ep(2), ep(3, zones="z2")], [1, 2, 3], []),
        ("none for our zone", US, [ep(1, zones="z2"), ep(2, zones="z3")], [1, 2], []),
        ("our zone is unknown", ZONELESS, [ep(1, zones="z1"), ep(2, zones="z2")], [1, 2], []),
        ("an unready one needs no hint", US, [ep(1, zones="z1"), ep(2, UNREADY), ep(3, zones="z2")], [1], []),
        ("our zone's only one is not ready", US, [ep(1, UNREADY, zones="z1"), ep(2, zones="z2")], [2], []),
        ("our zone's only one is leaving", US, [ep(1, LEAVING, zones="z1"), ep(2, zones="z2")], [2], []),
        (
            "hints do not count for terminating ones",
            US,
            [ep(1, LEAVING, zones="z1"), ep(2, LEAVING, zones="z2")],
            [1, 2],
            [],
        ),
        # Hints for nodes.
        ("allotted by node", US, [ep(1, nodes="us"), ep(2, nodes="them"), ep(3, nodes="us them")], [1, 3], []),
        ("one has no hint for a node", US, [ep(1, nodes="us"), ep(2)], [1, 2], []),
        ("none for our node", US, [ep(1, nodes="them"), ep(2, nodes="others")], [1, 2], []),
        ("our name is unknown", NAMELESS, [ep(1, nodes="us"), ep(2, nodes="them")], [1, 2], []),
        ("nodes come before zones", US, [ep(1, nodes="us", zones="z2"), ep(2, nodes="them", zones="z1")], [1], []),
        (
            "none for our node, but for our zone",
            US,
            [ep(1, nodes="a", zones="z1"), ep(2, nodes="b", zones="z2"), ep(3, nodes="c", zones="z1")],
            [1, 3],
            [],
        ),
        ("one has no hint for a node, all for zones", US, [ep(1, nodes="us", zones="z2"), ep(2, zones="z1")], [2], []),
        # Conditions.
        ("all leave", US, [ep(1, LEAVING), ep(2, LEAVING), ep(3, GONE)], [1, 2], []),
        ("one is ready, others leave", US, [ep(1), ep(2, LEAVING)], [1], []),
        ("none serves", US, [ep(1, GONE), ep(2, UNREADY)], [], []),
        # Here.
        ("here and there", US, [ep(1, node="us"), ep(2, node="them")], [1, 2], [1]),
        ("only there", US, [ep(1, node="them")], [1], []),
        ("node unknown", US, [ep(1)], [1], []),
        ("own node unknown", NAMELESS, [ep(1, node="us"), ep(2)], [1, 2], []),
        ("terminating here, ready there", US, [ep(1, LEAVING, node="us"), ep(2, node="them")], [2], [1]),
        ("ready here, terminating there", US, [ep(1, node="us"), ep(2, LEAVING, node="them")], [1], [1]),
        ("ready and terminating here", US, [ep(1, node="us"), ep(2, LEAVING, node="us")], [1], [1]),
        ("terminating here and there", US, [ep(1, LEAVING, node="us"), ep(2, LEAVING, node="them")], [1, 2], [1]),
        ("gone here", US, [ep(1, GONE, node="us"), ep(2, node="them")], [2], []),
        (
            "hints do not count for local ones",
            US,
            [ep(1, node="us", zones="z2"), ep(2, node="them", zones="z1"), ep(3, node="us", zones="z1")],
            [2, 3],
            [1, 3],
        ),
        (
            "hints there, terminating here",
            US,
            [ep(1, LEAVING, node="us", zones="z1"), ep(2, node="them", zones="z1"), ep(3, node="them", zones="z2")],
            [2],
            [1],
        ),
    ],
)
def test_table(
    why: str, facts: NodeFacts, endpoints: list[Endpoint], cluster_wide: list[int], local: list[int]
) -> None:
    choice = choose([Candidate(Target(endpoint.address, 80), endpoint) for endpoint in endpoints], facts)
    assert (numbered(choice.cluster_wide), numbered(choice.local)) == (cluster_wide, local), why
    assert choice.any_usable == bool(cluster_wide)


STATES = tuple(itertools.product(CONDITIONS, ("us", "them")))


@pytest.mark.parametrize("states", list(itertools.combinations_with_replacement(STATES, 3)))
def test_every_combination_of_conditions_and_places(states: tuple[tuple[str, str], ...]) -> None:
    """Cluster-wide and local endpoints are selected by the same rules, each by itself."""
    endpoints = [ep(number, state, node=node) for number, (state, node) in enumerate(states)]

    def expected(among: list[int]) -> list[int]:
        ready = [number for number in among if states[number][0] == READY]
        return ready or [number for number in among if states[number][0] == LEAVING]

    choice = choose([Candidate(Target(endpoint.address, 80), endpoint) for endpoint in endpoints], US)
    assert numbered(choice.cluster_wide) == expected([0, 1, 2])
    assert numbered(choice.local) == expected([number for number in range(3) if states[number][1] == "us"])


# Against a naive model.

hints = st.frozensets(st.sampled_from(["us", "them", "z1", "z2"]), max_size=2)
endpoints_at_random = st.lists(
    st.builds(
        Endpoint,
        st.sampled_from([Address(f"10.0.0.{number}") for number in range(5)]),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
        node=st.sampled_from(["us", "them", ""]),
        zone_hints=hints,
        node_hints=hints,
    ),
    max_size=5,
    unique_by=lambda endpoint: endpoint.address,
)


def naive(all_candidates: list[Endpoint], facts: NodeFacts) -> tuple[set[str], set[str]]:
    """The rule, step by step."""
    ready = {e.address: e for e in all_candidates if e.ready}
    cluster_wide: set[str] = set(ready)
    for_node = {a for a, e in ready.items() if facts.name in e.node_hints}
    for_zone = {a for a, e in ready.items() if facts.zone in e.zone_hints}
    if for_node and not [e for e in ready.values() if len(e.node_hints) == 0]:
        cluster_wide = set(for_node)
    elif for_zone and not [e for e in ready.values() if len(e.zone_hints) == 0]:
        cluster_wide = set(for_zone)
    if not cluster_wide:
        cluster_wide = {e.address for e in all_candidates if e.serving and e.terminating}
    local: set[str] = {a for a, e in ready.items() if facts.name and e.node == facts.name}
    if not local:
        local = {
            e.address for e in all_candidates if e.serving and e.terminating and facts.name and e.node == facts.name
        }
    return cluster_wide, local


@given(endpoints_at_random, st.sampled_from(["us", "", "elsewhere"]), st.sampled_from(["z1", "", "elsewhere"]))
def test_choice_equals_the_naive_model(all_candidates: list[Endpoint], name: str, zone: str) -> None:
    facts = NodeFacts(name=name, zone=zone)
    choice = choose([Candidate(Target(endpoint.address, 80), endpoint) for endpoint in all_candidates], facts)
    cluster_wide, local = naive(all_candidates, facts)
    assert ({t.address for t in choice.cluster_wide}, {t.address for t in choice.local}) == (cluster_wide, local)
    assert list(choice.cluster_wide) == sorted(set(choice.cluster_wide))
    assert choice.any_usable == bool([e for e in all_candidates if e.ready or (e.serving and e.terminating)])


# Candidates.


def of_http(*slices: EndpointSlice) -> list[Candidate]:
    return candidates(slices, port("http:80"), Family.IPV4)


def test_only_ports_of_the_same_name_and_protocol_serve() -> None:
    assert not of_http(endpoint_slice("web", "10.0.0.1", "https:8443"))
    assert not of_http(endpoint_slice("web", "10.0.0.1", "http:8080/UDP"))
    assert not of_http(endpoint_slice("web", "fd01::1"))
    (found,) = of_http(endpoint_slice("web", "10.0.0.1", "https:8443 http:8080"))
    assert found.target == Target(Address("10.0.0.1"), 8080)


def test_each_slice_has_port_numbers_of_its_own() -> None:
    found = of_http(endpoint_slice("web", "10.0.0.1"), endpoint_slice("web", "10.0.0.1 10.0.0.2", "http:9090"))
    assert sorted(c.target for c in found) == list(targets("10.0.0.1:8080 10.0.0.1:9090 10.0.0.2:9090"))


@pytest.mark.parametrize("worse", [LEAVING, GONE, UNREADY])
def test_the_best_conditions_of_an_endpoint_in_two_slices_count(worse: str) -> None:
    good, bad = endpoint_slice("web", (ep(1),)), endpoint_slice("web", (ep(1, worse),), called="other")
    for slices in ((good, bad), (bad, good)):
        (found,) = of_http(*slices)
        assert found.endpoint.ready


def test_an_endpoint_terminating_in_one_slice_and_gone_in_the_other_still_serves() -> None:
    slices = [endpoint_slice("web", (ep(1, state),), called=state) for state in (GONE, LEAVING)]
    for order in itertools.permutations(slices):
        assert choose(of_http(*order), US).cluster_wide == targets("10.0.0.1:8080")
