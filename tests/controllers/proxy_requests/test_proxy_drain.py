"""The library by which rollouts ask node proxies to drain pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest

from kubeproxy.controllers.api_types import Pod, Service
from kubeproxy.controllers.proxy_requests.proxy_drain import ProxyDrain
from kubeproxy.controllers.proxy_requests.requests import LIFETIME_S, Wish, addresses_for, merged, selects
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.model import Address
from kubeproxy.model.drain_request import MAX_AHEAD_S, MAX_REQUESTS, REQUESTS, DrainRequests, Want, decode_requests
from tests.controllers import virtual_time
from tests.controllers.api import Api, Json
from tests.controllers.kubelet import Kubelet
from tests.controllers.proxies import Proxies, expose, requests_on
from tests.controllers.virtual_time import unix_time

NOW = 1_760_000_000.0
A, B = Address("10.0.0.1"), Address("10.0.0.2")


@dataclass
class Scene:
    """Three ready pods behind a Service, and three nodes."""

    api: Api
    proxies: Proxies
    drain: ProxyDrain

    @property
    def pods(self) -> list[Pod]:
        return [msgspec.convert(pod, Pod) for pod in self.api.all("pods")]


@asynccontextmanager
async def scene(*, exposed: bool = True, nodes: int = 3) -> AsyncIterator[Scene]:
    api = Api(unix_time)
    Kubelet(api)
    if exposed:
        expose(api)
    for number in range(3):
        metadata = {"name": f"web-{number}", "labels": {"app": "web"}}
        api.create("pods", "default", {"metadata": metadata, "spec": {"containers": [{"image": "web:1"}]}})
    proxies = Proxies(api, nodes)
    await asyncio.sleep(3)
    yield Scene(api, proxies, ProxyDrain(cast(Client, api), "default", "test", clock=unix_time))
    proxies.close()


def test_pods_are_drained_when_every_node_has_followed_and_connections_have_ended() -> None:
    async def scenario() -> None:
        async with scene() as it:
            assert await it.drain.proxies() == {"node-0", "node-1", "node-2"}
            first, second, _ = it.pods
            await it.drain.start([first, second])
            began = await it.drain.state([first])
            assert began["web-0"].waiting == {"node-0", "node-1", "node-2"}
            assert began["web-0"].since == pytest.approx(unix_time(), abs=1)
            ended = await it.drain.wait([first, second], 30)
            assert all(state.done for state in ended.values())
            assert requests_on(it.api) == [("web-0", "drain"), ("web-1", "drain")]
            assert all(len(served) == 1 for served in it.proxies.served.values())

    virtual_time.run(scenario())


def test_wait_gives_up_and_names_nodes_that_have_not_followed() -> None:
    async def scenario() -> None:
        async with scene() as it:
            it.proxies.stuck.add("node-1")
            (pod, *_) = it.pods
            await it.drain.start([pod])
            seen: list[int] = []
            state = await it.drain.wait([pod], 20, lambda states: seen.append(len(states["web-0"].waiting)))
            assert state["web-0"].waiting == {"node-1"}
            assert not state["web-0"].done
            assert seen[0] == 3, "the first state"
            assert seen[-1] == 1

    virtual_time.run(scenario())


def test_node_that_is_gone_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with scene() as it:
            it.proxies.gone.add("node-1")
            await asyncio.sleep(200)
            assert await it.drain.proxies() == {"node-0", "node-2"}
            (pod, *_) = it.pods
            await it.drain.start([pod])
            assert (await it.drain.wait([pod], 20))["web-0"].done

    virtual_time.run(scenario())


def test_connections_are_counted_without_a_change_of_endpoints() -> None:
    async def scenario() -> None:
        async with scene() as it:
            assert await it.drain.connections(it.pods) == {"web-0": 2, "web-1": 2, "web-2": 2}
            assert all(len(served) == 3 for served in it.proxies.served.values())

    virtual_time.run(scenario())


def test_connections_to_a_pod_of_two_services_count_once() -> None:
    async def scenario() -> None:
        async with scene() as it:
            expose(it.api, "second")
            await asyncio.sleep(3)
            assert await it.drain.connections(it.pods) == {"web-0": 2, "web-1": 2, "web-2": 2}
            (pod, *_) = it.pods
            await it.drain.start([pod])
            await asyncio.sleep(3)
            assert (await it.drain.state([pod]))["web-0"].connections == 2

    virtual_time.run(scenario())


def test_withdrawn_pods_serve_again_and_nothing_stays() -> None:
    async def scenario() -> None:
        async with scene() as it:
            (pod, *_) = it.pods
            await it.drain.start([pod])
            await it.drain.wait([pod], 30)
            await it.drain.withdraw([pod])
            await asyncio.sleep(1)
            assert all(len(served) == 3 for served in it.proxies.served.values())
            assert requests_on(it.api) == []
            assert REQUESTS not in it.api.get("services", "web")["metadata"]["annotations"]

    virtual_time.run(scenario())


def test_request_of_a_killed_client_expires() -> None:
    async def scenario() -> None:
        async with scene() as it:
            await it.drain.start(it.pods[:1])
            await asyncio.sleep(LIFETIME_S + 2)
            assert all(len(served) == 3 for served in it.proxies.served.values())

    virtual_time.run(scenario())


def test_waiting_renews_the_request_and_makes_it_again_when_it_was_removed() -> None:
    async def scenario() -> None:
        async with scene() as it:
            it.proxies.connection_s = 1000.0
            (pod, *_) = it.pods
            await it.drain.start([pod])
            waiting = asyncio.ensure_future(it.drain.wait([pod], 400))
            await asyncio.sleep(200)
            assert all(len(served) == 2 for served in it.proxies.served.values()), "after its lifetime"
            it.api.patch("services", "default", "web", {"metadata": {"annotations": {REQUESTS: None}}})
            await asyncio.sleep(3)
            assert all(len(served) == 2 for served in it.proxies.served.values())
            assert not (await waiting)["web-0"].waiting

    virtual_time.run(scenario())


def test_two_rollouts_ask_about_one_service_at_the_same_time() -> None:
    async def scenario() -> None:
        async with scene() as it:
            other = ProxyDrain(cast(Client, it.api), "default", "other", clock=unix_time)
            first, second, _ = it.pods
            await asyncio.gather(it.drain.start([first]), other.start([second]))
            assert sorted(requests_on(it.api)) == [("web-0", "drain"), ("web-1", "drain")]
            await asyncio.gather(it.drain.wait([first], 30), other.wait([second], 30))
            await it.drain.withdraw([first])
            assert requests_on(it.api) == [("web-1", "drain")]

    virtual_time.run(scenario())


def test_pods_that_no_service_selects_need_no_draining() -> None:
    async def scenario() -> None:
        async with scene(exposed=False) as it:
            writes = it.api.writes
            await it.drain.start(it.pods)
            assert all(state.done for state in (await it.drain.wait(it.pods, 30)).values())
            assert it.api.writes == writes

    virtual_time.run(scenario())


def test_without_permission_to_read_reports_no_proxy_takes_part() -> None:
    class Forbidding(Api):
        async def get_json(self, path: str, query: object = None, **_: object) -> bytearray:
            if "leases" in path:
                raise status_error(Status(reason="Forbidden", message="no"), code=403, seen="the server answered")
            return await super().get_json(path, query)  # type: ignore[arg-type]

    async def scenario() -> None:
        drain = ProxyDrain(cast(Client, Forbidding(unix_time)), "default", "test", clock=unix_time)
        assert await drain.proxies() == frozenset()

    virtual_time.run(scenario())


def test_clean_up_waits_until_endpoint_slices_have_dropped_the_pods() -> None:
    async def scenario() -> None:
        async with scene() as it:
            (pod, *_) = it.pods
            await it.drain.start([pod])
            labels = {"kubernetes.io/service-name": "web"}
            listed = {"addresses": [pod.status.pod_ips[0].ip], "conditions": {"ready": True}}
            it.api.create(
                "endpointslices", "default", {"metadata": {"name": "web-x", "labels": labels}, "endpoints": [listed]}
            )
            cleaning = asyncio.ensure_future(it.drain.clean_up())
            await asyncio.sleep(3)
            assert requests_on(it.api) == [("web-0", "drain")]
            it.api.patch("endpointslices", "default", "web-x", {"endpoints": []})
            await cleaning
            assert requests_on(it.api) == []

    virtual_time.run(scenario())


def test_clean_up_does_not_wait_for_a_new_pod_with_the_address_of_a_deleted_one() -> None:
    async def scenario() -> None:
        async with scene() as it:
            (pod, *_) = it.pods
            await it.drain.start([pod])
            labels = {"kubernetes.io/service-name": "web"}
            listed = {
                "addresses": [pod.status.pod_ips[0].ip],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": "web-new", "uid": "another"},
            }
            it.api.create(
                "endpointslices", "default", {"metadata": {"name": "web-x", "labels": labels}, "endpoints": [listed]}
            )
            await it.drain.clean_up()
            assert requests_on(it.api) == []

    virtual_time.run(scenario())


def test_requests_name_the_uid_of_the_pod() -> None:
    async def scenario() -> None:
        async with scene() as it:
            (pod, *_) = it.pods
            await it.drain.start([pod])
            text = it.api.get("services", "web")["metadata"]["annotations"][REQUESTS]
            assert [each.uid for each in decode_requests(text).requests] == [pod.metadata.uid]
            assert pod.metadata.uid

    virtual_time.run(scenario())


# Merging


def wish(pod: str, address: Address, want: Want = Want.DRAIN, uid: str = "") -> Wish:
    return Wish(pod, uid or f"uid-of-{pod}", (address,), want)


def ask(current: DrainRequests, *wishes: Wish, owner: str = "me", now: float = NOW, **more: object) -> DrainRequests:
    return merged(current, owner, wishes, now=now, **more)  # type: ignore[arg-type]


def test_same_wishes_write_nothing_until_they_have_to_be_renewed() -> None:
    first = ask(DrainRequests(0), wish("a", A))
    assert ask(first, wish("a", A), now=NOW + 50) is first
    renewed = ask(first, wish("a", A), now=NOW + 70)
    assert renewed.generation == first.generation, "a renewal needs no report"
    assert renewed.requests[0].until == NOW + 70 + LIFETIME_S


def test_generation_grows_with_each_change_even_when_the_clock_goes_back() -> None:
    first = ask(DrainRequests(0), wish("a", A))
    second = ask(first, wish("a", A), wish("b", B), now=NOW - 1000)
    assert second.generation > first.generation
    assert {each.pod: each.since for each in second.requests} == {"a": first.generation, "b": second.generation}


def test_request_that_is_not_repeated_stays_until_it_expires_unless_withdrawn() -> None:
    first = ask(DrainRequests(0), wish("a", A))
    assert ask(first) is first
    assert ask(first, withdrawn={"a"}).requests == ()
    assert ask(first, now=NOW + LIFETIME_S).requests == ()


def test_another_wish_for_the_same_pod_replaces_the_first() -> None:
    counted = ask(DrainRequests(0), wish("a", A, Want.COUNT))
    assert [each.want for each in ask(counted, wish("a", A)).requests] == [Want.DRAIN]


def test_new_pod_with_the_address_of_one_that_is_gone_is_not_drained() -> None:
    gone = ask(DrainRequests(0), wish("a", A))
    assert [each.pod for each in ask(gone, wish("b", A, Want.USE)).requests] == ["b"]


def test_new_pod_with_the_name_and_address_of_one_that_is_gone_is_asked_about_anew() -> None:
    first = ask(DrainRequests(0), wish("a", A, uid="one"))
    second = ask(first, wish("a", A, uid="two"), now=NOW + 1)
    assert [(each.uid, each.since) for each in second.requests] == [("two", second.generation)]
    assert second.generation > first.generation


def test_requests_of_others_are_never_touched() -> None:
    theirs = ask(DrainRequests(0), wish("a", A), owner="them")
    assert ask(theirs, withdrawn={"a"}) is theirs
    both = ask(theirs, wish("a", A))
    assert [each.owner for each in both.requests] == ["them", "me"]


def test_too_many_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="found 1001"):
        ask(DrainRequests(0), *(wish(f"pod-{number}", A) for number in range(1001)))


def _crowd(owner: str, first: int, number: int) -> list[Wish]:
    return [wish(f"{owner}-{each}", Address(f"10.{each >> 8}.{each & 255}.1")) for each in range(first, first + number)]


def test_oldest_requests_that_are_not_repeated_make_room_for_new_ones() -> None:
    first = ask(DrainRequests(0), *_crowd("a", 0, 600))
    second = ask(first, *_crowd("a", 600, 300), now=NOW + 10)
    third = ask(second, *_crowd("a", 900, 200), now=NOW + 20)
    assert len(third.requests) == MAX_REQUESTS
    kept = {each.pod for each in third.requests}
    assert {f"a-{number}" for number in range(600, 1100)} <= kept, "the newest ones stay"


def test_requests_of_other_rollouts_never_make_room() -> None:
    others = ask(DrainRequests(0), *_crowd("a", 0, 900), owner="other")
    with pytest.raises(ValueError, match="found 1001 drain requests for one Service; allowed are at most 1000"):
        ask(others, *_crowd("b", 900, 101))


def test_request_that_would_count_too_late_is_made_again() -> None:
    first = ask(DrainRequests(0), wish("a", A))
    (late,) = ask(first, wish("a", A), now=NOW - MAX_AHEAD_S).requests
    assert late.until == NOW - MAX_AHEAD_S + LIFETIME_S


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({"selector": {"app": "web"}, "clusterIP": "10.96.0.1"}, True),
        ({"selector": {"app": "web"}, "clusterIP": "None"}, False),
        ({"selector": {"app": "db"}, "clusterIP": "10.96.0.1"}, False),
        ({"selector": {}, "clusterIP": "10.96.0.1"}, False),
        ({"selector": {"app": "web"}, "type": "ExternalName"}, False),
    ],
)
def test_proxies_serve_pods_of_services_with_cluster_addresses(spec: Json, selected: bool) -> None:
    pod = msgspec.convert({"metadata": {"name": "a", "labels": {"app": "web"}}}, Pod)
    assert selects(msgspec.convert({"spec": spec}, Service), pod) is selected


def test_addresses_are_those_in_the_families_of_the_service() -> None:
    ips = [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]
    pod = msgspec.convert({"status": {"podIPs": ips}}, Pod)
    single = msgspec.convert({"spec": {"clusterIP": "10.96.0.1"}}, Service)
    dual = msgspec.convert({"spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd01::1"]}}, Service)
    assert addresses_for(single, pod) == (A,)
    assert addresses_for(dual, pod) == (A, Address("fd00::1"))
    on_host = msgspec.convert({"spec": {"hostNetwork": True}, "status": {"podIPs": ips}}, Pod)
    assert addresses_for(dual, on_host) == (), "its successor has the same address"
