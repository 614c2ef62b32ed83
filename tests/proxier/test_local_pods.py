"""The pods of this node: which endpoints they are, which of them leave, and where their preStop hooks are led."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kubeproxy.model import Address, Endpoint, Protocol, ServiceName
from kubeproxy.proxier.local_pods import Leaving, LocalPods
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import DEFAULTS
from tests.proxier.builders import endpoint_slice, name, service, targets
from tests.proxier.fake_node import SOURCE, Node

A, SIX, B = Address("10.0.0.1"), Address("fd00::1"), Address("10.0.0.2")
HOST = Address("192.0.2.1")
FACTS = NodeFacts(name="node-a", own_addresses=frozenset({HOST}))
WEB, API = name("web"), name("api")
VIP = "10.96.0.1:80"


def endpoint(address: Address, pod: str = "uid-a", node: str = "node-a", *, terminating: bool = False) -> Endpoint:
    return Endpoint(address, node=node, pod=pod, terminating=terminating, ready=not terminating)


def put(pods: LocalPods, of: ServiceName, *endpoints: Endpoint, facts: NodeFacts = FACTS) -> None:
    pods.put(of, [endpoint_slice(of.name, endpoints)] if endpoints else (), facts)


def test_all_addresses_and_services_of_a_pod_leave_with_it() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A), endpoint(SIX), endpoint(B, "uid-b"))
    put(pods, API, endpoint(A), endpoint(Address("10.0.9.9"), node="node-b"))
    assert pods.leaving({A: "default/uid-a"}) == {Leaving(A, "uid-a"), Leaving(SIX, "uid-a")}
    assert pods.services_at([A]) == {WEB, API}
    assert pods.ports.keys() == {A, SIX, B}
    assert pods.identity(A) == "default/uid-a"


def test_pods_of_one_name_in_two_namespaces_do_not_leave_together() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A, "web-0"))
    put(pods, ServiceName("other", "web"), endpoint(B, "web-0"))
    assert pods.leaving({A: pods.identity(A)}) == {Leaving(A, "web-0")}


def test_another_pod_with_the_address_does_not_leave() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A, "uid-c"))
    assert pods.leaving({A: "default/uid-a"}) == frozenset()
    assert pods.leaving({A: ""}) == frozenset()


def test_an_endpoint_without_a_pod_leaves_by_its_address() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A, ""), endpoint(B, ""))
    assert pods.leaving({A: ""}) == {Leaving(A, "")}


def test_an_endpoint_that_names_no_pod_does_not_keep_those_of_the_pod() -> None:
    pods = LocalPods()
    put(pods, API, endpoint(A, ""))  # as in a slice made by hand
    put(pods, WEB, endpoint(A), endpoint(SIX))
    assert pods.identity(A) == "default/uid-a"
    assert pods.leaving({A: "default/uid-a"}) == {Leaving(A, ""), Leaving(A, "uid-a"), Leaving(SIX, "uid-a")}


def test_pods_of_the_hosts_network_and_of_other_nodes_are_none_of_ours() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(HOST), endpoint(A, node="node-b"), endpoint(B, node=""))
    put(pods, API, endpoint(A, node=""), facts=NodeFacts())
    assert not pods.ports


def test_pods_come_and_go() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A))
    before = pods.changes
    put(pods, WEB, endpoint(A, terminating=True))
    assert [each.terminating for each in pods.at(A)] == [True]
    assert pods.changes == before
    put(pods, API, endpoint(A))
    put(pods, WEB)
    assert pods.ports.keys() == {A}
    before = pods.changes
    put(pods, API)
    assert pods.changes > before
    assert not pods.at(A)


def test_the_first_pod_is_told() -> None:
    pods, told = LocalPods(), list[int]()
    pods.on_first = lambda: told.append(len(pods.ports))
    put(pods, WEB, endpoint(B, node="node-b"))
    put(pods, WEB, endpoint(A))
    put(pods, API, endpoint(B))
    assert told == [1]


def test_a_pod_in_anothers_place_is_a_change() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A))
    before = pods.changes
    put(pods, WEB, endpoint(B))
    assert pods.changes > before
    assert pods.ports.keys() == {B}


def test_a_pod_that_leaves_one_of_its_services_has_other_ports() -> None:
    pods = LocalPods()
    put(pods, WEB, endpoint(A))
    pods.put(API, [endpoint_slice("api", (endpoint(A), endpoint(B)), "http:9090")], FACTS)
    before, ports = pods.changes, pods.ports
    pods.put(API, [endpoint_slice("api", (endpoint(B),), "http:9090")], FACTS)
    assert pods.ports[A] < ports[A]
    assert pods.changes > before


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node(facts=FACTS)
    made.use(drain_hook=34567, drain_hook_port=10258)
    made.tracker.replace_services(SOURCE, [service("web")])
    made.tracker.replace_slices(SOURCE, [endpoint_slice("web", (endpoint(A), endpoint(B, "uid-b", "node-b")))])
    made.start()
    await made.rest()
    yield made
    await made.close()


async def test_a_pod_that_leaves_gets_no_new_connections(node: Node) -> None:
    node.use(leaving=frozenset({Leaving(A, "uid-a")}))
    await node.rest()
    assert node.answers(VIP) == targets("10.0.0.2:8080")
    node.use(leaving=frozenset())
    await node.rest()
    assert node.answers(VIP) == targets("10.0.0.1:8080 10.0.0.2:8080")


async def test_its_successor_gets_them_at_once(node: Node) -> None:
    node.use(leaving=frozenset({Leaving(A, "uid-a")}))
    await node.rest()
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (endpoint(A, "uid-c"), endpoint(B, "uid-b", "node-b"))))
    await node.rest()
    assert node.answers(VIP) == targets("10.0.0.1:8080 10.0.0.2:8080")


async def test_the_last_endpoint_goes_on_serving(node: Node) -> None:
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (endpoint(A),)))
    node.use(leaving=frozenset({Leaving(A, "uid-a")}))
    await node.rest()
    assert node.answers(VIP) == targets("10.0.0.1:8080")


async def test_hooks_of_this_nodes_pods_are_led_to_the_socket(node: Node) -> None:
    def hooks() -> set[tuple[str, Protocol, int]]:
        return {(it.address, it.protocol, it.port) for it in node.netfilter.kernel.hooks}

    assert hooks() == {(A, Protocol.TCP, 10258)}
    assert node.netfilter.kernel.hook_port == 34567
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (endpoint(SIX, "uid-d"), endpoint(B, "uid-b"))))
    await node.pass_time(1.0)
    assert hooks() == {(SIX, Protocol.TCP, 10258), (B, Protocol.TCP, 10258)}
    node.use(drain_hook_port=10300)
    await node.pass_time(1.0)
    assert hooks() == {(SIX, Protocol.TCP, 10300), (B, Protocol.TCP, 10300)}
    node.use(drain_hook_port=0)
    await node.pass_time(1.0)
    assert (hooks(), node.netfilter.kernel.hook_port) == (set(), 0)


def test_other_pods_take_other_elements_and_no_other_rules() -> None:
    rules, none = RuleSetBuilder(), frozenset[int]()
    rules.use(replace(DEFAULTS, drain_hook=34567, drain_hook_port=10258))
    rules.use_pods({A: none})
    in_force, generation = rules.ruleset(), rules.generation
    rules.use_pods({B: none, SIX: none})
    assert rules.generation == generation
    assert not rules.is_balanced
    change = rules.take_unbalanced(in_force)
    assert {it.address: is_one for it, is_one in change.hooks.items()} == {A: False, B: True, SIX: True}
    in_force.enter(change)
    assert in_force == rules.ruleset()
    rules.use_pods({})
    assert rules.generation > generation, "the rules go with the last hook"


async def test_a_pod_that_is_an_endpoint_at_the_port_itself_has_no_hook(node: Node) -> None:
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (endpoint(A),), "http:8080 health:10258"))
    await node.pass_time(1.0)
    assert not node.netfilter.kernel.hooks
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (endpoint(A),), "http:8080 syslog:10258/UDP"))
    await node.pass_time(1.0)
    assert {it.address for it in node.netfilter.kernel.hooks} == {A}
