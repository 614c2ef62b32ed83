"""The release of claims, and its effect on other claims."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kubeproxy.model import NODE_PORTS, Address, Endpoint, Family, Protocol, Service, ServicePort, Traffic
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.tracker import NOTHING, Change, View
from tests.proxier.builders import destination, endpoint_slice, frontend_name, name, targets
from tests.proxier.fake_node import settle
from tests.support.doubles.data_plane import FakePortReserver

OWN = Address("192.0.2.1")
WILDCARD = NODE_PORTS[Family.IPV4]
SETTINGS = ProxierSettings(protocols=frozenset({Protocol.TCP}), facts=NodeFacts(own_addresses=frozenset({OWN})))
WEB = Service(name("web"), (Address("10.96.0.1"),), (ServicePort("http", Protocol.TCP, 80, 30080),))
SHOP = Service(
    name("shop"),
    (Address("10.96.0.2"),),
    (ServicePort("http", Protocol.TCP, 30080),),
    external_ips=(OWN,),
)


@pytest.fixture
def reserver() -> FakePortReserver:
    return FakePortReserver()


@pytest.fixture
def state(reserver: FakePortReserver) -> ProxierState:
    return ProxierState(PortSystemCalls(reserver), SETTINGS)


def use_facts(state: ProxierState, facts: NodeFacts) -> None:
    state.use(replace(SETTINGS, facts=facts))


def put(state: ProxierState, *services: Service) -> None:
    state.absorb([Change(service.name, NOTHING, View(service, (), "kubernetes")) for service in services])


def remove(state: ProxierState, service: Service) -> None:
    state.absorb([Change(service.name, View(service, (), "kubernetes"), NOTHING)])


def test_a_claim_outlives_the_rules_that_need_it(state: ProxierState, reserver: FakePortReserver) -> None:
    put(state, WEB)
    settle(state)
    remove(state, WEB)
    state.applied(state.rules.generation)
    assert (Protocol.TCP, WILDCARD, 30080) in reserver.held
    settle(state)
    assert not reserver.held


def test_an_external_address_waits_for_a_node_port_and_then_for_descriptors(
    state: ProxierState, reserver: FakePortReserver
) -> None:
    put(state, WEB, SHOP)
    settle(state)
    assert destination("192.0.2.1:30080") not in state.availability.wanted[frontend_name("shop")].destinations
    assert any("the node port of default/web" in text for text in state.problems()[SHOP.name])
    reserver.error = OSError(errno.EMFILE, "Too many open files")
    remove(state, WEB)
    settle(state)
    assert destination("192.0.2.1:30080") not in state.availability.wanted[frontend_name("shop")].destinations
    assert Traffic(destination("192.0.2.1:30080")) not in state.rules.ruleset().redirects
    assert any("Too many open files" in text for text in state.problems()[SHOP.name])
    reserver.error = None
    state.retry()
    settle(state)
    assert Traffic(destination("192.0.2.1:30080")) in state.rules.ruleset().redirects
    assert not state.problems()


def test_a_cluster_ip_that_this_host_has_is_not_claimed(state: ProxierState, reserver: FakePortReserver) -> None:
    use_facts(state, NodeFacts(own_addresses=frozenset({Address("10.96.0.1")})))
    reserver.taken.add((Protocol.TCP, 80))
    put(state, WEB)
    settle(state)
    assert Traffic(destination("10.96.0.1:80")) in state.rules.ruleset().redirects
    assert not state.problems()


def test_an_endpoint_at_which_udp_flows_stay_is_known_to_the_rescue(state: ProxierState) -> None:
    """Its failure concerns the frontend, although new flows go elsewhere."""
    state.use(replace(SETTINGS, protocols=frozenset({Protocol.UDP})))
    service = replace(WEB, ports=(ServicePort("http", Protocol.UDP, 80),))
    leaving = Endpoint(Address("10.0.0.2"), ready=False, terminating=True)
    both = endpoint_slice("web", (Endpoint(Address("10.0.0.1")), leaving), "http:8080/UDP")
    for slices, known in (((both,), True), ((), False)):
        state.absorb([Change(service.name, NOTHING, View(service, slices, "kubernetes"))])
        settle(state)
        for target in targets("10.0.0.1:8080 10.0.0.2:8080"):
            assert bool(state.frontends_with(Protocol.UDP, target)) is known


def test_only_what_facts_concern_is_resolved_again(state: ProxierState) -> None:
    put(state, WEB, SHOP)
    settle(state)
    facts = NodeFacts(own_addresses=frozenset({OWN}))
    moved = replace(facts, own_addresses=frozenset({OWN, Address("fe80::1")}))
    for after, concerned in ((moved, 0), (replace(moved, own_addresses=frozenset()), 1), (NodeFacts(name="us"), 2)):
        use_facts(state, after)
        assert len(list(state.resolver.refresh(10))) == concerned
        assert not state.resolver.has_stale
    use_facts(state, NodeFacts(name="them"))
    assert len(list(state.resolver.refresh(1))) == len(list(state.resolver.refresh(1))) == 1
