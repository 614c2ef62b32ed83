"""When claims are given back, and what follows when that costs another its own."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kubeproxy.dataplane.fake import FakePortReserver
from kubeproxy.model import NODE_PORTS, Address, Family, Protocol, Service, ServicePort
from kubeproxy.proxier.claims import Claims
from kubeproxy.proxier.facts import NodeFacts
from kubeproxy.proxier.ledger import Ledger
from kubeproxy.proxier.ports import Ports
from kubeproxy.proxier.tracker import NOTHING, Change, View
from tests.proxier.builders import destination, frontend_name, name

OWN = Address("192.0.2.1")
WILDCARD = NODE_PORTS[Family.IPV4]
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
def ledger(reserver: FakePortReserver) -> Ledger:
    ports = Ports(reserver, None)
    claims = Claims(reserver, is_proxy_port=ports.holds)
    ledger = Ledger(ports=ports, claims=claims, families=tuple(Family), protocols=(Protocol.TCP,))
    ledger.use_facts(NodeFacts(own_addresses=frozenset({OWN})))
    return ledger


def put(ledger: Ledger, *services: Service) -> None:
    ledger.absorb([Change(service.name, NOTHING, View(service, (), "kubernetes")) for service in services])


def remove(ledger: Ledger, service: Service) -> None:
    ledger.absorb([Change(service.name, View(service, (), "kubernetes"), NOTHING)])


def settle(ledger: Ledger) -> None:
    """Until all is done, by a data plane and a kernel that never refuse."""
    while not ledger.settled:
        while (step := ledger.next_step(256)) is not None:
            ledger.done(step, {})
        ledger.applied(ledger.rules.generation)


def test_a_claim_outlives_the_rules_that_need_it(ledger: Ledger, reserver: FakePortReserver) -> None:
    put(ledger, WEB)
    settle(ledger)
    remove(ledger, WEB)
    ledger.applied(ledger.rules.generation)
    assert (Protocol.TCP, WILDCARD, 30080) in reserver.held
    settle(ledger)
    assert not reserver.held


def test_an_external_address_waits_for_a_node_port_and_then_for_descriptors(
    ledger: Ledger, reserver: FakePortReserver
) -> None:
    put(ledger, WEB, SHOP)
    settle(ledger)
    assert destination("192.0.2.1:30080") not in ledger.wanted[frontend_name("shop")].destinations
    assert any("the node port of default/web" in text for text in ledger.problems()[SHOP.name])
    reserver.error = OSError(errno.EMFILE, "Too many open files")
    remove(ledger, WEB)
    settle(ledger)
    assert destination("192.0.2.1:30080") not in ledger.wanted[frontend_name("shop")].destinations
    assert destination("192.0.2.1:30080") not in ledger.rules.ruleset().redirects
    assert any("Too many open files" in text for text in ledger.problems()[SHOP.name])
    reserver.error = None
    ledger.retry()
    settle(ledger)
    assert destination("192.0.2.1:30080") in ledger.rules.ruleset().redirects
    assert not ledger.problems()


def test_a_cluster_ip_that_this_host_has_is_not_claimed(ledger: Ledger, reserver: FakePortReserver) -> None:
    ledger.use_facts(NodeFacts(own_addresses=frozenset({Address("10.96.0.1")})))
    reserver.taken.add((Protocol.TCP, 80))
    put(ledger, WEB)
    settle(ledger)
    assert destination("10.96.0.1:80") in ledger.rules.ruleset().redirects
    assert not ledger.problems()


def test_only_what_facts_concern_is_resolved_again(ledger: Ledger) -> None:
    put(ledger, WEB, SHOP)
    settle(ledger)
    facts = NodeFacts(own_addresses=frozenset({OWN}))
    moved = replace(facts, own_addresses=frozenset({OWN, Address("fe80::1")}))
    for after, concerned in ((moved, 0), (replace(moved, own_addresses=frozenset()), 1), (NodeFacts(name="us"), 2)):
        ledger.use_facts(after)
        assert ledger.refresh(10) == concerned
        assert ledger.refresh(10) == 0
    ledger.use_facts(NodeFacts(name="them"))
    assert ledger.refresh(1) == ledger.refresh(1) == 1
