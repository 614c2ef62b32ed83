"""How a frontend's clients are spread: scheduler, weights and slow start, from the Service to the data plane."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeproxy.model import Balancing, Endpoint, EndpointSlice, Frontend, Scheduler, Service, parse_address, seed_of
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from kubeproxy.proxier.frontends import resolve
from kubeproxy.proxier.plan import endpoints_of
from kubeproxy.proxier.resolver import Resolver
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.tracker import Change, View
from tests.proxier.builders import endpoint_slice, service
from tests.proxier.fake_node import SOURCE, Node


def weighing(weight: int, *addresses: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(parse_address(address), weight=weight) for address in addresses)


def resolved(of: Service, *slices: EndpointSlice, scheduler: Scheduler = Scheduler.ROUND_ROBIN) -> Frontend:
    (found,) = resolve(of, slices, scheduler=scheduler).frontends
    return found


@pytest.mark.parametrize("scheduler", Scheduler)
def test_the_service_decides_before_the_node(scheduler: Scheduler) -> None:
    web, some = service("web"), endpoint_slice("web", "10.0.0.1 10.0.0.2")
    for asked, default in ((scheduler, Scheduler.RANDOM), (None, scheduler)):
        found = resolved(replace(web, scheduler=asked), some, scheduler=default)
        seed = seed_of("default", "web") if scheduler.hashes else 0
        assert found.balancing == Balancing(scheduler, seed=seed)
        assert endpoints_of(found).balancing == found.balancing


def test_weights_stand_in_the_order_of_endpoints_and_only_where_they_differ() -> None:
    light = endpoint_slice("web", weighing(1, "10.0.0.3", "10.0.0.1"), called="light")
    heavy = endpoint_slice("web", weighing(5, "10.0.0.2"), called="heavy")
    assert resolved(service("web"), light, heavy).balancing.weights == (1, 5, 1)
    assert resolved(service("web"), heavy).balancing.weights == ()


def test_what_is_left_of_a_frontend_keeps_its_weights() -> None:
    slices = [endpoint_slice("web", weighing(n, f"10.0.0.{n}"), called=f"s{n}") for n in (1, 2, 3)]
    found = resolved(service("web"), *slices)
    kept = found.keeping({found.endpoints[0], found.endpoints[2]})
    assert (len(kept.endpoints), kept.balancing.weights) == (2, (1, 3))


def test_another_default_resolves_the_services_again_that_ask_for_none() -> None:
    resolver = Resolver()
    some = endpoint_slice("web", "10.0.0.1")
    for of in (service("web"), replace(service("own"), scheduler=Scheduler.RANDOM)):
        view = View(service=of, slices=(some,), owner="test")
        list(resolver.absorb([Change(of.name, View(), view)]))
    resolver.use(ProxierSettings(scheduler=Scheduler.MAGLEV))
    (again,) = resolver.refresh(10)
    assert again.service == service("web").name
    assert again.frontends[0].balancing.scheduler is Scheduler.MAGLEV


def test_least_connections_without_workers_is_said_of_services_that_ask_for_it() -> None:
    resolver = Resolver()
    resolver.use(ProxierSettings(scheduler=Scheduler.LEAST_CONNECTIONS))
    asks, other = replace(service("asks"), scheduler=Scheduler.LEAST_CONNECTIONS), service("other")
    for of in (asks, other):
        list(resolver.absorb([Change(of.name, View(), View(service=of, slices=(), owner="test"))]))
    assert not resolver.remarks
    strict = DataPathPolicy(Wanted.KERNEL, fallback=False)
    resolver.use(ProxierSettings(scheduler=Scheduler.LEAST_CONNECTIONS, data_path=strict))
    assert [it.service for it in resolver.refresh(10)] == [asks.name]
    assert list(resolver.remarks) == [asks.name], "of the others the configuration warns once"
    assert "the kernel draws" in resolver.remarks[asks.name][0]


def test_a_slow_start_makes_its_service_stale_step_by_step() -> None:
    resolver = Resolver()
    web = replace(service("web"), slow_start_s=10, remarks=("an annotation is wrong",))
    before = View()
    for now, addresses in ((1.0, "10.0.0.1"), (2.0, "10.0.0.1 10.0.0.2")):
        resolver.set_time(1.7e9, now)
        view = View(service=web, slices=(endpoint_slice("web", addresses),), owner="test")
        (found,) = resolver.absorb([Change(web.name, before, view)])
        before = view
    assert resolver.remarks[web.name] == ("an annotation is wrong",), "it becomes an Event"
    assert found.frontends[0].balancing.weights == (10, 1)
    assert resolver.next_time(1.7e9, 2.0) == pytest.approx(3.0)
    resolver.set_time(1.7e9, 7.0)
    (found,) = resolver.refresh(10)
    assert found.frontends[0].balancing.weights == (10, 6)
    resolver.set_time(1.7e9, 12.0)
    (found,) = resolver.refresh(10)
    assert found.frontends[0].balancing.weights == ()
    assert resolver.next_time(1.7e9, 12.0) == float("inf")


async def test_a_unix_time_that_is_set_back_does_not_change_a_slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.tracker.replace_services(SOURCE, [replace(service("web"), slow_start_s=300)])
    node.tracker.replace_slices(SOURCE, [endpoint_slice("web", "10.0.0.1 10.0.0.2")])
    await node.settle()
    node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2 10.0.0.3"))
    await node.settle()
    monkeypatch.setattr(node.clock, "unix_now", lambda: node.clock.time - 3600.0)
    node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.3"))
    await node.settle()
    assert [it.balancing.weights for it in node.data_plane.endpoints.values()] == [(10, 1)]
    await node.pass_time(300.0)
    assert [it.balancing.weights for it in node.data_plane.endpoints.values()] == [()]
    await node.close()
