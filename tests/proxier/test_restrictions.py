"""Findings 5, 7 and 9 of the security review: addresses and ports that Services may not have. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from kubeproxy.config.load import load
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.settings import restrictions
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Endpoint,
    Family,
    Protocol,
    Service,
    ServicePort,
    Traffic,
)
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.netfilter.port_holders import Holder
from kubeproxy.proxier import NodeFacts
from kubeproxy.proxier.cidr_set import CidrSet
from kubeproxy.proxier.restrictions import Admitted, NodePortConflict, Restrictions, admit
from tests.proxier.builders import destination, endpoint_slice, frontend_name, name, service, targets
from tests.proxier.fake_node import SOURCE, Node

OWN, OWN6 = Address("192.0.2.1"), Address("2001:db8::1")
FACTS = NodeFacts(name="us", node_addresses=frozenset({OWN, OWN6}), own_addresses=frozenset({OWN, OWN6}))
DEFAULT = restrictions(Configuration())
ROOT, USER = Holder(0, True, 7, "sshd"), Holder(65534, False, 8, "nc")


def configured(**flags: str) -> Restrictions:
    """The restrictions of these flags."""
    return restrictions(load({flag.replace("_", "-"): [text] for flag, text in flags.items()}).configuration)


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.1.2.3", True),
        ("11.0.0.0", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("fd00:ec2::254", True),
        ("fd00:ec3::254", False),
        ("fd20:ce::254", True),
        ("::a01:203", False),
    ],
)
def test_blocks(address: str, inside: bool) -> None:
    blocks = CidrSet(frozenset({"10.0.0.0/8", "192.0.2.7/32", "fd00:ec2::/32", "fd20:ce::254/128"}))
    assert (Address(address) in blocks) is inside
    assert Address(address) not in CidrSet()
    assert Address("255.255.255.255") in CidrSet(frozenset({"0.0.0.0/0"}))
    assert Address(address) not in CidrSet(frozenset({"198.51.100.0/24"}))


# Finding 7: endpoints.


def admitted(
    *endpoints: Endpoint | str, source: str = "kubernetes", of: str = "default/web", by: Restrictions = DEFAULT
) -> Admitted:
    """A Service with these endpoints, without the withheld addresses."""
    all_of = tuple(it if isinstance(it, Endpoint) else Endpoint(Address(it)) for it in endpoints)
    slices = (endpoint_slice(of, all_of, called=name(of).name),)
    return admit(service(of), slices, source=source, restrictions=by, facts=FACTS)


def left(found: Admitted) -> list[str]:
    return [endpoint.address for it in found.slices for endpoint in it.endpoints]


METADATA = ["168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "192.0.0.192"]


@pytest.mark.parametrize("address", [*METADATA, "127.0.0.1", "127.8.9.9", "::1", OWN, OWN6])
def test_an_api_server_cannot_name_metadata_services_nor_this_node(address: str) -> None:
    neighbour = "10.0.0.1" if "." in address else "fd01::1"
    found = admitted(address, neighbour)
    assert left(found) == [neighbour]
    (remark,) = found.remarks
    assert address in remark
    assert left(admitted(address, neighbour, source="manifests")) == [address, neighbour]


def test_a_pod_of_this_node_on_its_network_is_an_endpoint() -> None:
    assert left(admitted(Endpoint(OWN, node="us"), Endpoint(OWN6, node="us"))) == [OWN, OWN6]
    assert left(admitted(Endpoint(OWN, node="them"))) == []


def test_the_api_server_on_this_node_is_an_endpoint_though_its_slice_names_no_node() -> None:
    assert left(admitted(OWN, of="default/kubernetes")) == [OWN]
    assert left(admitted(OWN, of="tenant/kubernetes")) == []
    # Before Kubernetes 1.21 it is made of Endpoints, and its name has a suffix.
    for called, expected in (("kubernetes/0/IPv4", [OWN]), ("kubernetes-0", []), ("tenant/kubernetes/0", [])):
        slices = (endpoint_slice("default/kubernetes", (Endpoint(OWN),), called=called),)
        found = admit(service("default/kubernetes"), slices, source="kubernetes", restrictions=DEFAULT, facts=FACTS)
        assert left(found) == expected, called
    assert left(admitted("168.63.129.16", of="default/kubernetes")) == []


def test_configured_blocks_hold_for_manifests_and_replace_the_default() -> None:
    by = configured(denied_endpoint_cidrs="10.1.0.0/16")
    assert left(admitted("10.1.0.1", "10.2.0.1", OWN, "168.63.129.16", by=by)) == ["10.2.0.1", OWN, "168.63.129.16"]
    assert left(admitted("10.1.0.1", "127.0.0.1", source="manifests", by=by)) == ["127.0.0.1"]


def test_many_withheld_addresses_are_counted_not_listed() -> None:
    by = configured(denied_endpoint_cidrs="10.1.0.0/16")
    (remark,) = admitted(*(f"10.1.0.{i}" for i in range(1, 10)), by=by).remarks
    assert "10.1.0.3, 6 more" in remark
    assert "10.1.0.4" not in remark


def test_where_nothing_is_withheld_objects_are_the_same() -> None:
    slices = (endpoint_slice("web", "10.0.0.1"),)
    found = admit(service("web"), slices, source="kubernetes", restrictions=DEFAULT, facts=FACTS)
    assert found.slices is slices
    assert not found.remarks


# CVE-2020-8554: addresses from outside.


def test_external_addresses_lie_where_they_may() -> None:
    one = replace(
        service("web"),
        external_ips=(Address("1.1.1.1"), Address("198.51.100.1")),
        load_balancer_ips=(Address("203.0.113.1"), Address("2001:db8:1::1")),
    )
    by = configured(external_address_cidrs="198.51.100.0/24,2001:db8:1::/48")
    found = admit(one, (), source="kubernetes", restrictions=by, facts=FACTS)
    assert found.service.external_ips == ("198.51.100.1",)
    assert found.service.load_balancer_ips == ("2001:db8:1::1",)
    assert found.service.cluster_ips == one.cluster_ips
    assert found.remarks == ("not served at 1.1.1.1, 203.0.113.1: outside kubeproxy.externalAddressCIDRs",)
    assert admit(one, (), source="kubernetes", restrictions=DEFAULT, facts=FACTS).service is one


# Findings 5 and 9: ports of this node.


class Ports:
    """The holders of ports, as the kernel would report them."""

    def __init__(self) -> None:
        self.holders: dict[int, tuple[Holder, ...]] = {}

    def __call__(self, protocol: Protocol, address: Address, port: int) -> tuple[Holder, ...]:
        return self.holders.get(port, ())


@pytest.fixture
def ports() -> Ports:
    return Ports()


@pytest.fixture
async def node(ports: Ports) -> AsyncIterator[Node]:
    node = Node(facts=FACTS, restrictions=DEFAULT, find_holders=ports)
    node.list_nothing()
    node.start()
    await node.rest()
    yield node
    await node.close()


def has(node: Node, ports: Ports, port: int, *holders: Holder) -> None:
    """Set the holders of a port; none: it is free."""
    node.reserver.taken.discard((Protocol.TCP, port))
    ports.holders[port] = holders
    if holders:
        node.reserver.taken.add((Protocol.TCP, port))


def wanting(text: str, port: int, node_port: int = 0, **more: object) -> Service:
    """A Service with a cluster IP of its own."""
    ip = f"10.96.0.{1 + sum(text.encode()) % 250}"
    base = Service(name(text), (Address(ip),), (ServicePort("http", Protocol.TCP, port, node_port),))
    return replace(base, **more)  # type: ignore[arg-type]


def external(text: str, port: int) -> Service:
    return wanting(text, port, external_ips=(OWN,))


async def put(node: Node, *services: Service) -> None:
    for one in services:
        node.tracker.put_service(SOURCE, one)
        node.tracker.put_slice(SOURCE, endpoint_slice(str(one.name), "10.0.0.1", called=one.name.name))
    await node.pass_time(2.0)


def at_node(node: Node, port: int) -> object:
    return node.answers(f"192.0.2.1:{port}")


def problem(node: Node, text: str) -> str:
    return "; ".join(node.diary.problems.get(name(text), ()))


SERVED = targets("10.0.0.1:8080")


@pytest.mark.parametrize("port", [80, 443, 30000, 32767])
async def test_external_addresses_have_the_ports_that_people_give_them(node: Node, port: int) -> None:
    await put(node, external("tenant/web", port))
    assert at_node(node, port) == SERVED
    assert not node.diary.problems


@pytest.mark.parametrize("port", [22, 79, 1024, 6443, 8080, 10249, 10250, 10256, 29999, 40000])
async def test_external_addresses_have_no_other_ports_of_this_node(node: Node, port: int) -> None:
    await put(node, external("tenant/web", port))
    assert at_node(node, port) is Fate.PASSED
    assert f"192.0.2.1:{port}" in problem(node, "tenant/web")
    assert not node.reserver.held.keys() & {(Protocol.TCP, OWN, port), (Protocol.TCP, NODE_PORTS[Family.IPV4], port)}
    (cluster_ip,) = external("tenant/web", port).cluster_ips
    assert node.answers(f"{cluster_ip}:{port}") == SERVED


async def test_load_balancer_addresses_have_more_but_no_reserved_ports(node: Node) -> None:
    await put(node, wanting("tenant/a", 5432, load_balancer_ips=(OWN,)))
    await put(node, wanting("tenant/b", 10250, load_balancer_ips=(OWN,)))
    assert at_node(node, 5432) == SERVED
    assert at_node(node, 10250) is Fate.PASSED
    assert "kubeproxy.reservedPorts" in problem(node, "tenant/b")


@pytest.mark.parametrize(
    ("port", "why"), [(10249, "metricsBindAddress"), (10250, "reservedPorts"), (10256, "healthzBindAddress")]
)
async def test_no_node_port_is_a_port_of_ours_or_of_kubelet(node: Node, port: int, why: str) -> None:
    await put(node, wanting("web", 80, port), wanting("lb", 80, health_check_node_port=port))
    assert at_node(node, port) is Fate.PASSED
    assert why in problem(node, "web")
    assert "health check node port" in problem(node, "lb")
    assert why in problem(node, "lb")
    assert not node.diary.health


async def test_our_ports_are_reserved_where_the_configuration_puts_them(node: Node) -> None:
    node.use(restrictions=configured(healthz_bind_address="0.0.0.0:31000", metrics_bind_address="127.0.0.1:443"))
    await put(node, wanting("web", 80, 31000), external("tenant/tls", 443))
    assert at_node(node, 31000) is at_node(node, 443) is Fate.PASSED
    node.use(restrictions=DEFAULT)
    await node.pass_time(2.0)
    assert at_node(node, 31000) == at_node(node, 443) == SERVED
    assert not node.diary.problems


@pytest.mark.parametrize("first", ["health", "external"])
async def test_a_health_check_node_port_belongs_to_its_service_alone(node: Node, first: str) -> None:
    health = wanting("lb", 80, health_check_node_port=31000)
    thieves = (external("a/thief", 31000), wanting("a/other", 80, 31000))
    for one in (health, *thieves) if first == "health" else (*thieves, health):
        await put(node, one)
    await node.pass_time(2.0)
    assert at_node(node, 31000) is Fate.PASSED
    assert not [held for held in node.reserver.held if held[2] == 31000]
    for thief in thieves:
        assert "the health check node port of default/lb" in problem(node, str(thief.name))
    node.tracker.remove_service(SOURCE, health.name)
    await node.pass_time(2.0)
    assert at_node(node, 31000) == SERVED


@pytest.mark.parametrize("first", ["node port", "external"])
async def test_an_external_address_takes_nothing_from_a_node_port(node: Node, first: str) -> None:
    rightful = wanting("np", 80, 31000)
    thief = replace(external("a/thief", 31000), created=1)
    for one in (rightful, thief) if first == "node port" else (thief, rightful):
        await put(node, one)
    assert Traffic(destination("192.0.2.1:31000")) not in node.netfilter.kernel.redirects
    assert at_node(node, 31000) == SERVED
    assert "the node port of default/np" in problem(node, "a/thief")
    assert not problem(node, "np")


async def test_a_port_that_a_daemon_had_is_not_taken_while_it_restarts(node: Node, ports: Ports) -> None:
    has(node, ports, 443, ROOT)
    await put(node, external("tenant/tls", 443))
    assert at_node(node, 443) is Fate.PASSED
    assert "process 7 (sshd) of user 0" in problem(node, "tenant/tls")
    has(node, ports, 443)
    for _ in range(5):
        await node.pass_time(60.0)
    # Nor by a new request of the Service, for the other protocol or by another Service's name.
    node.tracker.remove_service(SOURCE, name("tenant/tls"))
    await node.pass_time(2.0)
    await put(node, external("tenant/again", 443))
    assert at_node(node, 443) is Fate.PASSED
    assert "was seen to have that port" in problem(node, "tenant/again")
    assert not [held for held in node.reserver.held if held[2] == 443]
    node.use(restrictions=replace(DEFAULT))  # another object, as after SIGHUP
    await node.pass_time(2.0)
    assert at_node(node, 443) == SERVED
    assert not node.diary.problems


async def test_a_port_is_tried_again_that_another_run_of_ours_has(node: Node, ports: Ports) -> None:
    has(node, ports, 443, Holder(0, True, 9, "/usr/bin/kubeproxy run"))
    await put(node, external("tenant/tls", 443))
    assert at_node(node, 443) is Fate.PASSED
    has(node, ports, 443)
    for _ in range(4):
        await node.pass_time(31.0)
    assert at_node(node, 443) == SERVED


HOLDERS: Mapping[str, tuple[Holder, ...]] = {"user": (USER,), "root": (ROOT,), "both": (USER, ROOT)}


@pytest.mark.parametrize("holders", HOLDERS)
@pytest.mark.parametrize("conflict", NodePortConflict)
async def test_a_node_port_that_a_process_has(
    node: Node, ports: Ports, conflict: NodePortConflict, holders: str
) -> None:
    node.use(restrictions=configured(node_port_conflict=conflict.value))
    has(node, ports, 30080, *HOLDERS[holders])
    await put(node, wanting("web", 80, 30080))
    taken = conflict is NodePortConflict.TAKE or (conflict is NodePortConflict.TAKE_UNPRIVILEGED and holders == "user")
    assert at_node(node, 30080) == (SERVED if taken else Fate.PASSED)
    text = problem(node, "web")
    assert "node port 30080 (TCP, IPv4) " + ("is served, though" if taken else "is not served") in text
    for holder in HOLDERS[holders]:
        assert str(holder) in text
    # The port is reserved as soon as it is free, and nothing is left to report.
    has(node, ports, 30080)
    await node.pass_time(31.0)
    assert at_node(node, 30080) == SERVED
    assert (Protocol.TCP, NODE_PORTS[Family.IPV4], 30080) in node.reserver.held
    assert not node.diary.problems


async def test_a_node_port_with_an_unknown_holder_is_not_taken(node: Node, ports: Ports) -> None:
    def refuse(*_: object) -> tuple[Holder, ...]:
        raise PermissionError("no")

    ports.holders[30080] = ()
    node.proxier._state.availability.claims._find_holders = refuse
    node.reserver.taken.add((Protocol.TCP, 30080))
    await put(node, wanting("web", 80, 30080))
    assert at_node(node, 30080) is Fate.PASSED
    assert "another process" in problem(node, "web")


async def test_an_unprivileged_process_keeps_a_port_claimed_by_external_ips(node: Node, ports: Ports) -> None:
    has(node, ports, 443, USER)
    await put(node, external("tenant/tls", 443))
    assert at_node(node, 443) is Fate.PASSED


async def test_an_endpoint_becomes_this_nodes_and_is_not_dialed_any_more() -> None:
    node = Node(sources=("kubernetes",), facts=FACTS, restrictions=DEFAULT)
    node.list_nothing("kubernetes")
    node.start()
    node.tracker.put_service("kubernetes", service("web"))
    node.tracker.put_slice("kubernetes", endpoint_slice("web", "10.0.0.1 10.0.0.2"))
    await node.pass_time(2.0)
    assert node.answers("10.96.0.1:80") == targets("10.0.0.1:8080 10.0.0.2:8080")
    node.use(facts=replace(FACTS, own_addresses=FACTS.own_addresses | {Address("10.0.0.2")}))
    await node.pass_time(2.0)
    assert node.answers("10.96.0.1:80") == SERVED
    assert "10.0.0.2: an address of this node" in problem(node, "web")
    assert node.proxier.view.candidates(frontend_name("web")).keys() == set(SERVED)
    await node.close()
