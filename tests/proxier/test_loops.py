"""Endpoints that lead back to the proxy are left out for as long as they do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeproxy.model import Address, EndpointSlice, Protocol, Service, ServicePort, Verdict
from kubeproxy.proxier.endpoint_selection import MOST, subset
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.tracker import NOTHING, Change, View
from tests.proxier.builders import endpoint_slice, frontend_name, name, service, targets
from tests.proxier.fake_node import settle
from tests.support.doubles.data_plane import FakePortReserver

NODE = Address("192.0.2.1")
SECOND = Address("192.0.2.2")
POD = "10.3.0.2"
SETTINGS = ProxierSettings(protocols=frozenset(Protocol), facts=NodeFacts(own_addresses=frozenset({NODE})))
WEB, SHOP = frontend_name("web"), frontend_name("shop")


@pytest.fixture
def state() -> ProxierState:
    reserver = FakePortReserver()
    return ProxierState(PortSystemCalls(reserver), SETTINGS)


def use_facts(state: ProxierState, facts: NodeFacts) -> None:
    state.use(replace(SETTINGS, facts=facts))


def put(state: ProxierState, service: Service, *slices: EndpointSlice) -> None:
    state.absorb([Change(service.name, NOTHING, View(service, slices, "kubernetes"))])
    settle(state)


def remove(state: ProxierState, service: Service) -> None:
    state.absorb([Change(service.name, View(service, (), "kubernetes"), NOTHING)])
    settle(state)


def slice_to(of: str, address: str, number: int, protocol: str = "") -> EndpointSlice:
    return endpoint_slice(of, address, f"http:{number}{protocol}")


def test_its_own_address(state: ProxierState) -> None:
    put(state, service("web", "10.96.0.1"), slice_to("web", f"10.96.0.1 {POD}", 80))
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:80")
    (problem,) = state.problems()[name("web")]
    assert "10.96.0.1:80 is left out" in problem
    assert "leads back to this proxy" in problem


def test_nothing_else_is_left_of_it(state: ProxierState) -> None:
    put(state, service("web", "10.96.0.1"), slice_to("web", "10.96.0.1", 80))
    assert state.availability.wanted[WEB].endpoints == ()
    assert state.availability.wanted[WEB].when_empty is Verdict.REFUSE


def test_another_port_or_protocol_of_a_service_address_is_none_of_ours(state: ProxierState) -> None:
    put(state, service("web", "10.96.0.1"), slice_to("web", "10.96.0.1", 81))
    assert state.availability.wanted[WEB].endpoints == targets("10.96.0.1:81")
    put(state, service("shop", "10.96.0.2", "http:80/UDP"), slice_to("shop", "10.96.0.1", 80, "/UDP"))
    assert state.availability.wanted[SHOP].endpoints == targets("10.96.0.1:80")
    assert not state.problems()


def test_another_services_address_that_comes_later_and_goes(state: ProxierState) -> None:
    put(state, service("web", "10.96.0.1"), slice_to("web", f"10.96.0.2 {POD}", 80))
    assert len(state.availability.wanted[WEB].endpoints) == 2
    put(state, service("shop", "10.96.0.2"), slice_to("shop", "10.96.0.1", 80))
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:80")
    assert state.availability.wanted[SHOP].endpoints == ()
    remove(state, service("shop", "10.96.0.2"))
    assert len(state.availability.wanted[WEB].endpoints) == 2
    assert not state.problems()
    sent = state.listeners.existing[WEB].sent
    assert sent is not None
    assert len(sent.endpoints) == 2, "the data plane knows"


def test_an_external_address_takes_no_endpoint_from_another_service(state: ProxierState) -> None:
    """It may be another tenant's pod, chosen to have its endpoints left out."""
    put(state, service("web", "10.96.0.1"), slice_to("web", f"198.51.100.1 {POD}", 80))
    thief = replace(
        service("shop", "10.96.0.2"),
        external_ips=(Address(POD),),
        load_balancer_ips=(Address("198.51.100.1"),),
    )
    put(state, thief)
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:80 198.51.100.1:80")
    assert name("web") not in state.problems()


def test_a_node_port_on_any_address_of_the_node(state: ProxierState) -> None:
    node_port = Service(name("shop"), (Address("10.96.0.2"),), (ServicePort("http", Protocol.TCP, 80, 30080),))
    put(state, service("web", "10.96.0.1"), slice_to("web", f"{NODE} {SECOND} 127.0.0.1 {POD}", 30080))
    assert len(state.availability.wanted[WEB].endpoints) == 4
    put(state, node_port)
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:30080 {SECOND}:30080")
    assert "a node port of this node" in state.problems()[name("web")][0]
    use_facts(state, NodeFacts(own_addresses=frozenset({NODE, SECOND})))
    settle(state)
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:30080")
    use_facts(state, NodeFacts(own_addresses=frozenset()))
    settle(state)
    # Loopback is always this node's.
    assert state.availability.wanted[WEB].endpoints == targets(f"{POD}:30080 {NODE}:30080 {SECOND}:30080")
    remove(state, node_port)
    assert len(state.availability.wanted[WEB].endpoints) == 4


def test_a_proxy_port_of_this_node(state: ProxierState) -> None:
    put(state, service("web", "10.96.0.1"))
    port = state.listeners.existing[WEB].reservation.port
    put(state, service("shop", "10.96.0.2"), slice_to("shop", f"{NODE} {POD}", port))
    assert state.availability.wanted[SHOP].endpoints == targets(f"{POD}:{port}")
    assert "a proxy port of this node" in state.problems()[name("shop")][0]
    remove(state, service("web", "10.96.0.1"))
    assert len(state.availability.wanted[SHOP].endpoints) == 2


def test_a_proxy_port_that_is_taken_later(state: ProxierState) -> None:
    put(state, service("probe", "10.96.0.9"))
    following = state.listeners.existing[frontend_name("probe")].reservation.port + 1
    put(state, service("shop", "10.96.0.2"), slice_to("shop", f"{NODE} {POD}", following + 1))
    assert state.listeners.existing[SHOP].reservation.port == following
    assert len(state.availability.wanted[SHOP].endpoints) == 2
    put(state, service("web", "10.96.0.1"))
    assert state.listeners.existing[WEB].reservation.port == following + 1
    assert state.availability.wanted[SHOP].endpoints == targets(f"{POD}:{following + 1}")


def test_an_unavailable_port_does_not_lead_back(state: ProxierState) -> None:
    """A process of this node has the port, so the endpoint is that process."""
    reserver = FakePortReserver()
    state = ProxierState(PortSystemCalls(reserver), SETTINGS)
    reserver.taken.add((Protocol.TCP, 80))
    web = replace(service("web", "10.96.0.1"), external_ips=(NODE,))
    put(state, web, slice_to("web", NODE, 80))
    assert state.availability.wanted[WEB].endpoints == targets(f"{NODE}:80")


def test_of_many_endpoints_a_node_uses_some(state: ProxierState) -> None:
    """40,000 endpoints of one tenant do not block the workers, which serve all tenants."""
    addresses = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(40_000)]
    slices = [
        endpoint_slice("web", " ".join(addresses[at : at + 600]), called=f"web-{at}")
        for at in range(0, len(addresses), 600)
    ]
    use_facts(state, NodeFacts(name="node-1"))
    put(state, service("web", "10.96.0.1"), *slices)
    before = state.availability.wanted[WEB].endpoints
    assert len(set(before)) == MOST
    assert state.problems()[name("web")] == (f"{WEB}: this node uses {MOST} of its 40000 endpoints",)
    gone = View(service("web", "10.96.0.1"), tuple(slices[1:]), "kubernetes")
    state.absorb([Change(name("web"), NOTHING, gone)])
    after = state.availability.wanted[WEB].endpoints
    assert len(after) == MOST
    assert len({*before} - {*after}) < MOST // 40, "about as many as have gone"
    other_node = subset(targets(" ".join(f"{address}:8080" for address in addresses)), "node-2")
    assert len({*before} & {*other_node}) < MOST // 8, "another node uses others"
    put(state, service("web", "10.96.0.1"), *slices[:4])
    assert len(state.availability.wanted[WEB].endpoints) == 2400
    assert not state.problems()
