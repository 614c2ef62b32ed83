"""Node ports held against other processes, and which claim yields."""

from __future__ import annotations

import errno

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, FrontendName, Protocol
from kubeproxy.proxier.port_claims import NodePortClaims
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from tests.proxier.builders import frontend_name
from tests.support.doubles.data_plane import FakePortReserver

WEB, SHOP = frontend_name("web"), frontend_name("shop")
WEB_TOO = frontend_name("web", "other")
NODE = Address("192.0.2.1")
WILDCARD = NODE_PORTS[Family.IPV4]


def at(address: Address = WILDCARD, port: int = 30080, protocol: Protocol = Protocol.TCP) -> Destination:
    return Destination(address, protocol, port)


@pytest.fixture
def reserver() -> FakePortReserver:
    return FakePortReserver()


@pytest.fixture
def claims(reserver: FakePortReserver) -> NodePortClaims:
    return NodePortClaims(PortSystemCalls(reserver), is_proxy_port=lambda protocol, port: port == 30099)


def held(reserver: FakePortReserver) -> set[Destination]:
    return {Destination(address, protocol, port) for protocol, address, port in reserver.held}


def no_endpoint(destination: Destination) -> bool:
    return False


def test_a_claimed_port_is_held_until_its_release(claims: NodePortClaims, reserver: FakePortReserver) -> None:
    assert not claims.claim(WEB, frozenset({at(), at(protocol=Protocol.UDP), at(NODE_PORTS[Family.IPV6])}))
    assert held(reserver) == {at(), at(protocol=Protocol.UDP), at(NODE_PORTS[Family.IPV6])}
    claims.claim(WEB, frozenset({at()}))
    claims.release(lambda destination: destination.protocol is Protocol.UDP)
    assert held(reserver) == {at(), at(protocol=Protocol.UDP)}
    claims.release(no_endpoint)
    assert held(reserver) == {at()}


def test_a_new_claimant_of_a_destination_takes_over_its_claim(
    claims: NodePortClaims, reserver: FakePortReserver
) -> None:
    claims.claim(WEB, frozenset({at()}))
    (before,) = reserver.held.values()
    claims.claim(SHOP, frozenset({at()}))
    claims.claim(WEB, frozenset())
    claims.release(no_endpoint)
    assert list(reserver.held.values()) == [before]


def test_a_port_of_another_process_is_unavailable_until_it_is_free(
    claims: NodePortClaims, reserver: FakePortReserver
) -> None:
    reserver.taken.add((Protocol.TCP, 30080))
    assert claims.claim(WEB, frozenset({at(), at(port=30081)})) == {WEB}
    assert claims.unavailable(WEB) == {at()}
    assert "another process" in claims.faults[at()]
    assert not claims.retry()
    reserver.taken.clear()
    assert claims.retry() == {WEB}
    assert not claims.unavailable(WEB)
    assert not claims.faults


def test_a_port_that_is_a_proxy_port_is_named_as_one(claims: NodePortClaims, reserver: FakePortReserver) -> None:
    reserver.taken.add((Protocol.TCP, 30099))
    claims.claim(WEB, frozenset({at(port=30099)}))
    assert "--proxy-port-range" in claims.faults[at(port=30099)]


def test_other_errors_are_reported_unchanged(claims: NodePortClaims, reserver: FakePortReserver) -> None:
    reserver.error = OSError(errno.EMFILE, "Too many open files")
    claims.claim(WEB, frozenset({at()}))
    assert "Too many open files" in claims.faults[at()]


def test_an_unavailable_port_without_claimant_is_forgotten(claims: NodePortClaims, reserver: FakePortReserver) -> None:
    reserver.taken.add((Protocol.TCP, 30080))
    claims.claim(WEB, frozenset({at()}))
    claims.claim(WEB, frozenset())
    assert not claims.faults
    reserver.taken.clear()
    assert not claims.retry()
    assert not reserver.held


def test_a_node_port_includes_the_same_port_at_the_nodes_own_addresses(
    claims: NodePortClaims, reserver: FakePortReserver
) -> None:
    claims.claim(WEB, frozenset({at(NODE)}))
    assert held(reserver) == {at(NODE)}
    assert not claims.claim(WEB_TOO, frozenset({at()}))
    assert held(reserver) == {at()}
    assert not claims.unavailable(WEB)
    claims.claim(WEB_TOO, frozenset())
    assert held(reserver) == {at()}
    assert not claims.release(no_endpoint)
    assert held(reserver) == {at(NODE)}


def test_if_the_wildcard_is_unavailable_single_addresses_are_kept(reserver: FakePortReserver) -> None:
    class OneAddressTaken(FakePortReserver):
        def _is_free(self, protocol: Protocol, address: Address, port: int) -> bool:
            return address == NODE and super()._is_free(protocol, address, port)

    reserver = OneAddressTaken()
    claims = NodePortClaims(PortSystemCalls(reserver), is_proxy_port=lambda protocol, port: False)
    claims.claim(WEB, frozenset({at(NODE)}))
    assert claims.claim(WEB_TOO, frozenset({at()})) == {WEB_TOO}
    assert held(reserver) == {at(NODE)}
    assert not claims.unavailable(WEB)
    assert claims.unavailable(WEB_TOO) == {at()}


def test_everything_is_given_back_in_the_end(claims: NodePortClaims, reserver: FakePortReserver) -> None:
    claims.claim(WEB, frozenset({at(), at(NODE, 80)}))
    claims.claim(WEB, frozenset({at()}))
    claims.close()
    assert not reserver.held
    claims.close()


DESTINATIONS = [at(address, port) for address in (WILDCARD, NODE, Address("192.0.2.2")) for port in (30080, 30081)]


class ClaimsMachine(RuleBasedStateMachine):
    """Claims against invariants, after any sequence of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reserver = FakePortReserver()
        self.claims = NodePortClaims(PortSystemCalls(self.reserver), is_proxy_port=lambda protocol, port: False)
        self.wants: dict[FrontendName, frozenset[Destination]] = {}
        self.known: dict[FrontendName, frozenset[Destination]] = {WEB: frozenset(), SHOP: frozenset()}
        """Update the destinations that frontends know to be unavailable."""

    def update(self, changed: set[FrontendName]) -> None:
        for name in changed:
            self.known[name] = self.claims.unavailable(name)

    @rule(name=st.sampled_from([WEB, SHOP]), destinations=st.frozensets(st.sampled_from(DESTINATIONS)))
    def claim(self, name: FrontendName, destinations: frozenset[Destination]) -> None:
        self.wants[name] = destinations
        self.update(self.claims.claim(name, destinations) | {name})

    @rule(port=st.sampled_from([30080, 30081]))
    def others(self, port: int) -> None:
        if all(number != port for _, _, number in self.reserver.held):
            self.reserver.taken ^= {(Protocol.TCP, port)}

    @rule()
    def retry(self) -> None:
        self.update(self.claims.retry())
        free = {d for d in DESTINATIONS if (Protocol.TCP, d.port) not in self.reserver.taken}
        assert not free & self.claims.awaited

    @rule(in_use=st.frozensets(st.sampled_from(DESTINATIONS)))
    def release(self, in_use: frozenset[Destination]) -> None:
        self.update(self.claims.release(in_use.__contains__))

    @rule()
    def release_all(self) -> None:
        self.update(self.claims.release(no_endpoint))
        assert held(self.reserver) <= frozenset().union(*self.wants.values())

    @invariant()
    def granted_is_held(self) -> None:
        have = held(self.reserver)
        for name, destinations in self.wants.items():
            for destination in destinations - self.claims.unavailable(name):
                assert destination in have or destination._replace(address=WILDCARD) in have

    @invariant()
    def all_parts_agree(self) -> None:
        for name in (WEB, SHOP):
            assert self.known[name] == self.claims.unavailable(name)
        wanted = frozenset().union(*self.wants.values())
        assert self.claims.faults.keys() <= wanted
        assert all(self.claims.claimants(d) == {n for n, w in self.wants.items() if d in w} for d in self.claims.faults)


ClaimsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestClaimsMachine = ClaimsMachine.TestCase
