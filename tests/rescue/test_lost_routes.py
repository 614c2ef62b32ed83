"""`kubeproxy.rescue.lost_routes`: what a lost route, and looking all routes up, cost among many endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest

from kubeproxy.model import Address, Destination, Family, FrontendName, Protocol, ServicePortName, Target, Traffic
from kubeproxy.netfilter.routing.route_watch import Lost
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from kubeproxy.rescue import lost_routes
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.lost_routes import LOOKUPS, SWEEP_EACH_S, SWEEP_S, LostRoutes
from tests.support.doubles.data_plane import FakeDataPlane

WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)
ENDPOINTS = 10 * LOOKUPS + 7
TARGETS = tuple(Target(Address(f"10.{number >> 8}.{number & 255}.1"), 80) for number in range(ENDPOINTS))
AT_MOST = 64


@dataclass
class Node:
    """Rules with many endpoints, and the routes to these. It counts what it is asked for."""

    targets: Sequence[Target] = TARGETS
    lost: Lost = Lost(set(), more=False)  # noqa: RUF009 - `look` replaces it
    routeless: set[Address] = field(default_factory=set)
    looked_up: list[Address] = field(default_factory=list)
    asked_for: int = 0

    @property
    def in_force(self) -> RuleSet:
        """Every endpoint has a Service, and a node port of it."""
        spreads = {}
        for number, target in enumerate(self.targets):
            spread = Spread("default/web:http", (target,), (target,))
            for address in ("10.96.0.1", "0.0.0.0"):
                spreads[Traffic(Destination(Address(address), Protocol.TCP, number))] = spread
        return RuleSet(spreads=spreads)

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        self.asked_for += 1
        return (WEB,)

    async def eject(self, ejected: object) -> None:
        raise AssertionError("nothing is dialed here")

    def set_ejected(self, ejected: object) -> None:
        raise AssertionError("nothing is dialed here")

    def look(self) -> Lost:
        lost, self.lost = self.lost, Lost(set(), more=False)
        return lost

    def without_route(self, addresses: Iterable[Address]) -> set[Address]:
        addresses = set(addresses)
        self.looked_up += addresses
        return addresses & self.routeless


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    monkeypatch.setattr(lost_routes, "without_route", node.without_route)
    return node


def routes_of(node: Node) -> LostRoutes:
    return LostRoutes(Ejector(node, node, FakeDataPlane()), node)


def swept(routes: LostRoutes, node: Node, now: float) -> Iterator[int]:
    """Look until nothing is looked up; the number of lookups of each look."""
    while True:
        node.looked_up.clear()
        routes.next(AT_MOST, now)
        if not node.looked_up:
            return
        yield len(node.looked_up)


def test_a_sweep_is_done_in_pieces_and_seldom_among_many(node: Node) -> None:
    routes = routes_of(node)
    assert list(swept(routes, node, 100.0)) == [LOOKUPS] * 10 + [7]
    assert not node.asked_for, "only what has lost its route costs more than a lookup"
    pause = max(SWEEP_S, SWEEP_EACH_S * ENDPOINTS)
    assert list(swept(routes, node, 100.0 + pause - 0.1)) == []
    assert sum(swept(routes, node, 100.0 + pause)) == ENDPOINTS


def test_what_has_no_route_is_found_by_the_sweep(node: Node) -> None:
    routes = routes_of(node)
    node.routeless = {TARGETS[3].address, TARGETS[-1].address}
    found = [endpoint for _ in range(11) for endpoint in routes.next(AT_MOST, 100.0)]
    assert found == [(Protocol.TCP, TARGETS[3]), (Protocol.TCP, TARGETS[-1])]


def test_a_lost_route_concerns_its_endpoints_alone(node: Node) -> None:
    routes = routes_of(node)
    assert sum(swept(routes, node, 100.0)) == ENDPOINTS
    node.looked_up.clear()
    node.lost = Lost({ip_network(f"{TARGETS[5].address}/32"), ip_network("fd00::/64")}, more=False)
    assert routes.next(AT_MOST, 101.0) == [(Protocol.TCP, TARGETS[5])]
    assert node.asked_for == 1
    assert not node.looked_up


def test_links_that_go_all_the_time_keep_no_endpoint_from_its_turn(node: Node) -> None:
    routes = routes_of(node)
    node.routeless = {TARGETS[-1].address}
    found: list[tuple[Protocol, Target]] = []
    for _ in range(13):
        node.lost = Lost(set(), more=True)
        found += routes.next(AT_MOST, 100.0)
    assert found == [(Protocol.TCP, TARGETS[-1])]


def test_a_link_that_goes_has_all_routes_looked_up_once_its_routes_have_gone(node: Node) -> None:
    node.targets = TARGETS[:5]
    routes = routes_of(node)
    assert list(swept(routes, node, 100.0)) == [5]
    node.lost = Lost(set(), more=True)
    routes.next(AT_MOST, 101.0)
    assert not node.looked_up, "the kernel announces the link before it removes the routes"
    assert list(swept(routes, node, 101.1)) == [5]
