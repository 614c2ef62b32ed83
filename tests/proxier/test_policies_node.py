"""The whole proxier on a node: policies, node ports, the node's facts, stale flows and health check node ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kubeproxy.dataplane.messages import Listen, Retire
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Endpoint,
    Family,
    Protocol,
    Scope,
    Service,
    ServicePort,
    TrafficPolicy,
)
from kubeproxy.model import Node as ModelNode
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.proxier import NodeFacts, PortRange
from tests.proxier.builders import destination, endpoint_slice, frontend_name, name, targets
from tests.proxier.fake_node import SOURCE, Node
from tests.support.doubles.conntrack import FakeConntrack

NODE_ADDRESS = Address("192.0.2.1")
WILDCARD = NODE_PORTS[Family.IPV4]
FACTS = NodeFacts(
    name="us",
    zone="z1",
    node_addresses=frozenset({NODE_ADDRESS}),
    own_addresses=frozenset({NODE_ADDRESS, Address("127.0.0.1")}),
    internal_sources=frozenset({"10.0.0.0/16"}),
)
HERE = Endpoint(Address("10.0.0.1"), node="us")
THERE = Endpoint(Address("10.0.0.2"), node="them")
NEAR, FAR = replace(HERE, zone_hints=frozenset({"z1"})), replace(THERE, zone_hints=frozenset({"z2"}))
ON_US, ON_THEM = targets("10.0.0.1:8080"), targets("10.0.0.2:8080")


def service(
    text: str = "web",
    ip: str = "10.96.0.1",
    *,
    port: ServicePort = ServicePort("http", Protocol.TCP, 80, 30080),  # noqa: B008 - frozen
    external: str = "",
    balancer: str = "",
    policy: TrafficPolicy = TrafficPolicy.CLUSTER,
    ranges: tuple[str, ...] = (),
    health_check_node_port: int = 0,
) -> Service:
    return Service(
        name=name(text),
        cluster_ips=tuple(Address(a) for a in ip.split()),
        ports=(port,),
        external_policy=policy,
        external_ips=tuple(Address(a) for a in external.split()),
        load_balancer_ips=tuple(Address(a) for a in balancer.split()),
        load_balancer_source_ranges=ranges,
        health_check_node_port=health_check_node_port,
    )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node(facts=FACTS, families=tuple(Family), protocols=(Protocol.TCP, Protocol.UDP))
    node.list_nothing()
    node.start()
    await node.rest()
    yield node
    await node.close()


async def serve(node: Node, *services: Service, endpoints: tuple[Endpoint, ...] = (HERE, THERE)) -> None:
    """Run until all is in effect."""
    for one in services:
        node.tracker.put_service(SOURCE, one)
        node.tracker.put_slice(SOURCE, endpoint_slice(str(one.name), endpoints, called=one.name.name))
    await node.pass_time(2.0)


def meets(node: Node, where: str, **how: object) -> tuple[str, ...] | Fate:
    """The addresses that may answer a client."""
    met = node.netfilter.trace(destination(where), **how)  # type: ignore[arg-type]
    if met.fate is not Fate.PROXIED:
        return met.fate
    (found,) = [n for n, listen in node.data_plane.listening.items() if listen.port == met.proxy_port]
    return tuple(target.address for target in node.data_plane.endpoints[found].endpoints)


async def test_a_node_port_answers_at_the_nodes_addresses_and_is_held(node: Node) -> None:
    await serve(node, service())
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1", "10.0.0.2")
    assert meets(node, "192.0.2.9:30080") is Fate.PASSED
    assert (Protocol.TCP, WILDCARD, 30080) in node.reserver.held
    node.tracker.remove_service(SOURCE, name("web"))
    await node.pass_time(2.0)
    assert meets(node, "192.0.2.1:30080") is Fate.PASSED
    assert not node.reserver.held


async def test_a_node_port_is_held_until_no_rule_redirects_there(node: Node) -> None:
    await serve(node, service())
    node.netfilter.fail()
    node.tracker.remove_service(SOURCE, name("web"))
    await node.pass_time(1.0)
    assert not node.netfilter.failures
    assert (Protocol.TCP, WILDCARD, 30080) in node.reserver.held
    await node.pass_time(2.0)
    assert not node.reserver.held


async def test_under_policy_local_only_the_cluster_uses_all_endpoints(node: Node) -> None:
    await serve(node, service(policy=TrafficPolicy.LOCAL, external="198.51.100.1"))
    for where in ("192.0.2.1:30080", "198.51.100.1:80"):
        assert meets(node, where) == ("10.0.0.1",)
        assert meets(node, where, from_this_host=True) == ("10.0.0.1", "10.0.0.2")
        assert meets(node, where, source=Address("10.0.3.4")) == ("10.0.0.1", "10.0.0.2")
    external = frontend_name("web")._replace(scope=Scope.EXTERNAL)
    assert node.data_plane.endpoints[external].preserve == set(ON_US)
    assert not node.data_plane.endpoints[frontend_name("web")].preserve
    assert node.netfilter.kernel.transparent

    await serve(node, service(policy=TrafficPolicy.LOCAL, external="198.51.100.1"), endpoints=(THERE,))
    assert meets(node, "192.0.2.1:30080") is Fate.DROPPED
    assert meets(node, "192.0.2.1:30080", from_this_host=True) == ("10.0.0.2",)
    await serve(node, service(policy=TrafficPolicy.LOCAL, external="198.51.100.1"), endpoints=())
    assert meets(node, "192.0.2.1:30080") is Fate.REFUSED


async def test_a_change_of_policy_and_back_leaves_the_listener_alone(node: Node) -> None:
    await serve(node, service())
    port = node.proxy_port(frontend_name("web"))
    await serve(node, service(policy=TrafficPolicy.LOCAL))
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1",)
    await serve(node, service())
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1", "10.0.0.2")
    assert node.proxy_port(frontend_name("web")) == port
    about = [m for m in node.data_plane.sent if isinstance(m, Listen | Retire) and m.frontend == frontend_name("web")]
    assert len(about) == 1


# Ports that others use.


async def test_a_node_port_in_use_is_reported_and_all_else_served(node: Node) -> None:
    node.reserver.taken.add((Protocol.TCP, 30080))
    await serve(node, service(external="198.51.100.1"))
    assert meets(node, "10.96.0.1:80") == meets(node, "198.51.100.1:80") == ("10.0.0.1", "10.0.0.2")
    assert meets(node, "192.0.2.1:30080") is Fate.PASSED
    (problem,) = node.diary.problems[name("web")]
    assert "30080" in problem
    assert "another process" in problem
    node.reserver.taken.clear()
    await node.pass_time(31.0)
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1", "10.0.0.2")
    assert not node.diary.problems


async def test_a_denied_node_port_is_tried_again_before_the_next_full_sync(node: Node) -> None:
    node.reserver.taken.add((Protocol.TCP, 30080))
    await serve(node, service())
    node.reserver.taken.clear()
    for _ in range(3):
        await node.pass_time(1.0)
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1", "10.0.0.2")


async def test_an_external_ip_of_the_node_does_not_take_ports_of_its_processes(node: Node) -> None:
    ssh = ServicePort("ssh", Protocol.TCP, 22)
    node.reserver.taken.add((Protocol.TCP, 22))
    await serve(node, service("ssh", port=ssh, external="192.0.2.1 198.51.100.1"))
    assert meets(node, "192.0.2.1:22") is Fate.PASSED
    assert node.netfilter.trace(destination("198.51.100.1:22")).fate is not Fate.PASSED
    assert "192.0.2.1:22" in node.diary.problems[name("ssh")][0]


async def test_an_address_that_becomes_the_nodes_own_is_claimed(node: Node) -> None:
    await serve(node, service(external="198.51.100.1"))
    node.reserver.taken.add((Protocol.TCP, 80))
    moved = FACTS.own_addresses | {Address("198.51.100.1")}
    node.use(facts=replace(FACTS, own_addresses=moved))
    await node.pass_time(2.0)
    assert meets(node, "198.51.100.1:80") is Fate.PASSED
    node.use(facts=FACTS)
    await node.pass_time(2.0)
    assert meets(node, "198.51.100.1:80") == ("10.0.0.1", "10.0.0.2")
    assert not node.diary.problems


async def test_proxy_ports_skip_node_ports() -> None:
    node = Node(port_range=PortRange(30080, 30081), facts=FACTS)
    node.list_nothing()
    node.start()
    await serve(node, service())
    assert node.proxy_port(frontend_name("web")) == 30081
    assert not node.diary.problems
    await serve(node, service("shop", "10.96.0.2", port=ServicePort("http", Protocol.TCP, 80, 30081)))
    assert any("--proxy-port-range" in problem for problem in node.diary.problems[name("shop")])
    await node.close()


async def test_two_services_claim_one_node_port(node: Node) -> None:
    await serve(node, service("first"))
    await serve(node, service("second", "10.96.0.2"), endpoints=(THERE,))
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.1", "10.0.0.2")
    assert meets(node, "10.96.0.2:80") == ("10.0.0.2",)
    (problem,) = node.diary.problems[name("second")]
    assert "node port 30080" in problem
    assert "default/first" in problem
    node.tracker.remove_service(SOURCE, name("first"))
    await node.pass_time(2.0)
    assert meets(node, "192.0.2.1:30080") == ("10.0.0.2",)
    assert not node.diary.problems
    assert (Protocol.TCP, WILDCARD, 30080) in node.reserver.held


# The node's facts.


async def test_another_zone_means_other_endpoints(node: Node) -> None:
    await serve(node, service(), endpoints=(NEAR, FAR))
    assert meets(node, "10.96.0.1:80") == ("10.0.0.1",)
    node.use(facts=replace(FACTS, zone="z2"))
    await node.rest()
    assert meets(node, "10.96.0.1:80") == ("10.0.0.2",)
    node.use(facts=replace(FACTS, zone="z3"))
    await node.rest()
    assert meets(node, "10.96.0.1:80") == ("10.0.0.1", "10.0.0.2")


async def test_other_node_addresses_take_the_node_ports(node: Node) -> None:
    await serve(node, service())
    count = len(node.data_plane.sent)
    node.use(facts=replace(FACTS, node_addresses=frozenset({Address("192.0.2.7")})))
    await node.pass_time(2.0)
    assert meets(node, "192.0.2.1:30080") is Fate.PASSED
    assert meets(node, "192.0.2.7:30080") == ("10.0.0.1", "10.0.0.2")
    assert len(node.data_plane.sent) == count


async def test_many_services_follow_new_facts_in_batches(node: Node) -> None:
    many = [
        service(f"web-{n}", f"10.96.{n // 250}.{n % 250 + 1}", port=ServicePort("http", Protocol.TCP, 80))
        for n in range(600)
    ]
    await serve(node, *many, endpoints=(NEAR, FAR))
    node.use(facts=replace(FACTS, zone="z2"))
    assert node.proxier.view.snapshot().pending_since is not None
    await node.rest()
    assert {it.endpoints for it in node.data_plane.endpoints.values()} == {ON_THEM}
    assert node.proxier.view.snapshot().pending_since is None


async def test_a_service_that_goes_while_it_waits_to_be_resolved_again(node: Node) -> None:
    await serve(node, service(), endpoints=(NEAR, FAR))
    node.use(facts=replace(FACTS, zone="z2"))
    node.tracker.remove_service(SOURCE, name("web"))
    await node.pass_time(2.0)
    assert not node.data_plane.listening
    assert node.proxier.view.snapshot().pending_since is None


def test_the_tracker_reports_changes_of_the_node(node: Node) -> None:
    calls: list[ModelNode | None] = []
    node.tracker.notify_node(lambda: calls.append(node.tracker.node))
    ours = ModelNode("us", zone="z1")
    for described in (None, None, ours, ModelNode("us", zone="z1"), None):
        node.tracker.set_node(described)
    assert calls == [None, ours, None], "first it becomes known that there is none"


# Bad input.


async def test_ranges_of_the_other_family_alone_are_reported(node: Node) -> None:
    await serve(node, service(balancer="203.0.113.1", ranges=("2001:db8::/32",)))
    assert meets(node, "203.0.113.1:80") is Fate.PASSED
    assert meets(node, "10.96.0.1:80") == ("10.0.0.1", "10.0.0.2")
    assert any("no IPv4 range" in problem for problem in node.diary.problems[name("web")])


async def test_source_ranges_hold_for_the_load_balancer_address_alone(node: Node) -> None:
    await serve(node, service(balancer="203.0.113.1", ranges=("192.0.2.0/24",), policy=TrafficPolicy.LOCAL))
    assert meets(node, "203.0.113.1:80", source=Address("192.0.2.77")) == ("10.0.0.1",)
    assert node.netfilter.kernel.allowed_sources == {destination("203.0.113.1:80"): {"192.0.2.0/24"}}


async def test_hints_for_unknown_zones_are_ignored(node: Node) -> None:
    await serve(node, service(), endpoints=(replace(HERE, zone_hints=frozenset({"nowhere"})), FAR))
    assert meets(node, "10.96.0.1:80") == ("10.0.0.1", "10.0.0.2")


# Flows that contradict the rules.


@pytest.fixture
async def tracked() -> AsyncIterator[tuple[Node, FakeConntrack]]:
    conntrack = FakeConntrack()
    node = Node(facts=FACTS, conntrack=conntrack)
    node.list_nothing()
    node.start()
    await node.rest()
    yield node, conntrack
    await node.close()


async def test_flows_are_reconciled_after_every_change_of_rules(tracked: tuple[Node, FakeConntrack]) -> None:
    node, conntrack = tracked
    first = node.netfilter.kernel
    assert conntrack.calls == [(None, first)]
    await serve(node, service())
    second = node.netfilter.kernel
    assert conntrack.calls[-1] == (first, second)
    calls = len(conntrack.calls)
    await node.pass_time(31.0)
    assert len(conntrack.calls) == calls, "the periodic sync has changed nothing"


@pytest.mark.parametrize("whole", [False, True])
async def test_a_failed_reconciliation_is_repeated(tracked: tuple[Node, FakeConntrack], whole: bool) -> None:
    """With the same rules before if all rules have been replaced, and otherwise as if these were unknown."""
    node, conntrack = tracked
    first = node.netfilter.kernel
    conntrack.fail("no more memory", times=1 if whole else 2)
    if whole:
        node.use(landing={Family.IPV4: Address("10.2.0.1")})
    await serve(node, service())
    assert "conntrack failed: no more memory" in node.diary.entries
    assert meets(node, "10.96.0.1:80") != Fate.PASSED
    snapshot = node.proxier.view.snapshot()
    assert snapshot.failing is not None
    assert "conntrack" in snapshot.failing
    assert snapshot.failures == 0
    await node.pass_time(31.0)
    assert conntrack.calls[-1] == (first if whole else None, node.netfilter.kernel)
    assert node.proxier.view.snapshot().failing is None


async def test_rules_removed_while_ours_change_may_leave_flows_of_any_kind(
    tracked: tuple[Node, FakeConntrack],
) -> None:
    """As when a new instance dies that has taken over the rules: its flows are no difference of ours."""
    node, conntrack = tracked
    node.netfilter.lose(noticed=True)
    await serve(node, service())
    assert conntrack.calls[-1] == (None, node.netfilter.kernel)


async def test_rules_taken_over_by_an_instance_that_dies_may_leave_flows_of_any_kind(
    tracked: tuple[Node, FakeConntrack],
) -> None:
    node, conntrack = tracked
    await node.proxier.hold(True)
    node.netfilter.lose(noticed=True)
    await serve(node, service())
    await node.proxier.hold(False)
    await node.rest()
    assert conntrack.calls[-1] == (None, node.netfilter.kernel)


async def test_removed_rules_may_leave_flows_of_any_kind(
    tracked: tuple[Node, FakeConntrack],
) -> None:
    node, conntrack = tracked
    await serve(node, service())
    node.netfilter.lose()
    await node.pass_time(31.0)
    assert conntrack.calls[-1] == (None, node.netfilter.kernel)


async def test_no_transaction_no_reconciliation(tracked: tuple[Node, FakeConntrack]) -> None:
    node, conntrack = tracked
    calls = len(conntrack.calls)
    node.netfilter.fail(times=1)
    node.tracker.put_service(SOURCE, service())
    await node.pass_time(1.0)
    failed_at = len(conntrack.calls)
    assert failed_at == calls
    await node.pass_time(5.0)
    assert len(conntrack.calls) == calls + 1


# Health check node ports.


async def test_health_is_reported_when_it_changes(node: Node) -> None:
    balanced = service(policy=TrafficPolicy.LOCAL, balancer="203.0.113.1", health_check_node_port=32000)
    await serve(node, balanced)
    assert node.diary.health == {name("web"): (32000, 1)}
    await serve(node, balanced, endpoints=(THERE,))
    assert node.diary.health == {name("web"): (32000, 0)}
    assert node.proxier.view.snapshot().service_health == {name("web"): (32000, 0)}
    node.use(facts=replace(FACTS, name="them"))
    await node.rest()
    assert node.diary.health == {name("web"): (32000, 1)}
    node.tracker.remove_service(SOURCE, name("web"))
    await node.rest()
    assert not node.diary.health


async def test_health_is_reported_when_the_rules_that_it_is_about_are_in_force(node: Node) -> None:
    await serve(node, service(policy=TrafficPolicy.CLUSTER, balancer="203.0.113.1"))
    node.netfilter.fail(times=1)
    local = service(policy=TrafficPolicy.LOCAL, balancer="203.0.113.1", health_check_node_port=32000)
    node.tracker.put_service(SOURCE, local)
    await node.pass_time(1.0)
    assert not node.diary.health, "a load balancer would send clients to the rules of the other policy"
    await node.pass_time(5.0)
    assert node.diary.health == {name("web"): (32000, 1)}
