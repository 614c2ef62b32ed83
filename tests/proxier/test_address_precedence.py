"""Finding 6 of the security review: which Service has an address that several claim, live and after a restart."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kubeproxy.model import Address, Service, parse_address
from kubeproxy.proxier.frontends import resolve
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from tests.proxier.builders import destination, endpoint_slice, name, service, targets
from tests.proxier.fake_node import SOURCE, Node

STOLEN = {4: "10.96.0.20", 6: "fd00:96::20"}
OLD, NEW = 1_600_000_000, 1_700_000_000


def external(text: str, address: str, created: int = 0) -> Service:
    """A Service with an address in its externalIPs."""
    return replace(_elsewhere(text, address), external_ips=(parse_address(address),), created=created)


def balanced(text: str, address: str, created: int = 0) -> Service:
    """A Service with an address of its load balancer."""
    return replace(_elsewhere(text, address), load_balancer_ips=(parse_address(address),), created=created)


def allocated(text: str, address: str, created: int = 0) -> Service:
    """A Service with a cluster IP."""
    return replace(service(text, ips=address), created=created)


def _elsewhere(text: str, address: str) -> Service:
    return service(text, ips="fd00:96::99" if ":" in address else "10.96.0.99")


def orders(address: str) -> dict[str, list[Service]]:
    """Services in the order of their claims on the address."""
    return {
        "by how they come by it": [
            allocated("c/z", address, NEW),
            balanced("b/y", address, OLD),
            external("a/x", address, OLD),
        ],
        "by age": [external("z/old", address, OLD), external("a/new", address, NEW)],
        "by name among equals": [balanced("a/web", address, NEW), balanced("b/web", address, NEW)],
        "manifests without a time first": [external("z/manifest", address), external("a/api", address, OLD)],
    }


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("why", orders("10.96.0.20"))
def test_the_holder_does_not_depend_on_the_order_of_arrival(why: str, family: int) -> None:
    address = STOLEN[family]
    expected = [str(it.name) for it in orders(address)[why]]
    for arrival in itertools.permutations(orders(address)[why]):
        rules, ports = RuleSetBuilder(), {}
        for port, one in enumerate(arrival, 40001):
            for frontend in resolve(one, ()).frontends:
                if frontend.name.family == family:
                    rules.put(frontend, port)
                    ports[str(one.name)] = port
        wanted = list(expected)
        while wanted:
            redirects = {d.address: p for (d, _), p in rules.ruleset().redirects.items()}
            assert redirects[Address(address)] == ports[wanted[0]], (why, [str(it.name) for it in arrival])
            gone = wanted.pop(0)
            for one in arrival:
                if str(one.name) == gone:
                    for frontend in resolve(one, ()).frontends:
                        rules.remove(frontend.name)


async def served(node: Node, *services: Service) -> None:
    """Wait until each of these Services is served by its own endpoint."""
    for one in services:
        node.tracker.put_service(SOURCE, one)
        node.tracker.put_slice(SOURCE, endpoint_slice(str(one.name), f"10.0.0.{_number(one)}"))
    await node.pass_time(2.0)


def _number(one: Service) -> int:
    return 1 if one.name.name == "np" else 2


async def test_a_cluster_ip_displaces_an_external_address_that_was_first() -> None:
    node = Node()
    node.list_nothing()
    node.start()
    try:
        await served(node, external("atenant/extsteal", STOLEN[4], OLD))
        assert node.answers("10.96.0.20:80") == targets("10.0.0.2:8080")
        await served(node, allocated("np", STOLEN[4], NEW))
        assert node.answers("10.96.0.20:80") == targets("10.0.0.1:8080")
        (problem,) = node.diary.problems[name("atenant/extsteal")]
        assert "TCP 10.96.0.20:80 belongs to default/np:http" in problem
        assert "allocated" in problem
        assert name("np") not in node.diary.problems
    finally:
        await node.close()


async def test_no_service_wins_a_restart_by_its_name() -> None:
    node = Node()
    thief, victim = external("atenant/extsteal", STOLEN[4], NEW), allocated("np", STOLEN[4], OLD)
    node.tracker.replace_services(SOURCE, [thief, victim])
    node.tracker.replace_slices(
        SOURCE, [endpoint_slice(str(it.name), f"10.0.0.{_number(it)}") for it in (thief, victim)]
    )
    node.start()
    try:
        await node.rest()
        await node.pass_time(2.0)
        assert node.answers("10.96.0.20:80") == targets("10.0.0.1:8080")
        assert [str(it) for it in node.diary.problems] == ["atenant/extsteal"]
    finally:
        await node.close()


def test_an_address_that_a_service_has_twice_counts_by_the_best() -> None:
    both = replace(allocated("a", STOLEN[4]), external_ips=(Address(STOLEN[4]),))
    (frontend,) = resolve(both, ()).frontends
    assert frontend.destinations.keys() == {destination("10.96.0.20:80")}
    assert not frontend.claims
