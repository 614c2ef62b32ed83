"""Drain requests: endpoints that get no new connections, and what a node reports of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from types import FrameType

import pytest

from kubeproxy.model import Address, Endpoint, EndpointSlice, Service, ServiceName
from kubeproxy.model.drain_report import NodeReport, ServiceReport, decode_report, encode_report
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want, decode_requests, encode_requests
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.proxier.drained_endpoints import drained
from tests.proxier.builders import endpoint_slice, name, service, targets
from tests.proxier.fake_node import SOURCE, Node

A, B, C = (Address(f"10.0.0.{number}") for number in (1, 2, 3))
WEB = "10.96.0.1:80"


def asking(want: Want, *addresses: Address, until: float = 1500.0, generation: int = 7) -> Service:
    """The Service ``web`` with one request for each address."""
    requests = tuple(DrainRequest("test", f"pod-{each}", (each,), want, generation, until) for each in addresses)
    return replace(service("web"), drain=DrainRequests(generation, requests))


def asking_about(*requests: tuple[Want, str], at: Address = A) -> Service:
    """The Service ``web`` with requests about pods, the newest last, that all have or had one address."""
    listed = tuple(
        DrainRequest("test", pod, (at,), want, since, 1500.0, uid=f"uid-of-{pod}")
        for since, (want, pod) in enumerate(requests, start=1)
    )
    return replace(service("web"), drain=DrainRequests(len(listed), listed))


def listing(*pods: str, ready: bool = True) -> EndpointSlice:
    """A slice with the pods at address A, one after the other, and another endpoint at B."""
    return endpoint_slice("web", (*(Endpoint(A, ready=ready, pod=pod) for pod in pods), Endpoint(B, pod="uid-of-b")))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    made.use(drains=True)
    made.tracker.replace_services(SOURCE, [service("web")])
    made.tracker.replace_slices(SOURCE, [endpoint_slice("web", "10.0.0.1 10.0.0.2")])
    made.start()
    await made.rest()
    yield made
    await made.close()


def report(node: Node, of: str = "web") -> ServiceReport:
    return node.diary.drains[name(of)].report


async def test_draining_endpoint_gets_no_new_connection_and_generation_is_reported(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    assert report(node) == ServiceReport(generation=7)
    assert node.diary.drains[name("web")].counted == {A}
    assert node.diary.drains[name("web")].draining == {A}


async def test_withdrawn_request_puts_the_endpoint_back_and_ends_the_report(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    node.tracker.put_service(SOURCE, service("web"))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains == {}


async def test_last_endpoints_go_on_serving_although_they_are_to_drain(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A, B))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert report(node).kept == {A, B}


async def test_endpoint_that_is_not_ready_gets_nothing_by_draining(node: Node) -> None:
    slow = (Endpoint(A, ready=False, serving=False), Endpoint(B))
    node.tracker.put_slice(SOURCE, endpoint_slice("web", slow))
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A, B))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")


async def test_expired_request_ends_by_itself(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A, until=1030.0))
    await node.rest()
    await node.pass_time(29.0)
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    await node.pass_time(1.0)
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains == {}


async def test_request_counts_in_the_last_ten_minutes_before_its_end(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A, until=1000.0 + 3600.0))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains == {}, "no rollout may believe that this node follows"
    await node.pass_time(3000.0)
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    assert report(node).generation == 7
    await node.pass_time(600.0)
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains == {}


async def test_generation_of_a_request_that_does_not_count_yet_is_not_reported(node: Node) -> None:
    soon, ahead = (
        DrainRequest("test", pod, (address,), Want.DRAIN, since, until)
        for pod, address, since, until in (("a", A, 5, 1500.0), ("b", B, 7, 1000.0 + 3600.0))
    )
    node.tracker.put_service(SOURCE, replace(service("web"), drain=DrainRequests(7, (soon, ahead))))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    assert report(node).generation == 6


async def test_requests_that_end_one_after_the_other_resolve_their_service_rarely(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[float] = []

    def noted(slices: tuple[EndpointSlice, ...], requests: DrainRequests, now: float) -> tuple[EndpointSlice, ...]:
        resolved.append(now)
        return drained(slices, requests, now)

    monkeypatch.setattr("kubeproxy.proxier.drain_requests.drained", noted)
    listed = tuple(DrainRequest("test", f"p{n}", (A,), Want.DRAIN, 7, 1001.0 + n / 100, f"u{n}") for n in range(1000))
    node.tracker.put_service(SOURCE, replace(service("web"), drain=DrainRequests(7, listed)))
    await node.rest()
    await node.pass_time(15.0)
    assert node.diary.drains == {}
    assert len(resolved) <= 4


async def test_expired_request_does_not_count_at_the_start(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A, until=999.0))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")


async def test_requests_count_only_while_they_are_switched_on(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    node.use(drains=False)
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains == {}
    node.use(drains=True)
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")


async def test_pod_to_be_used_is_reported_until_it_is_a_ready_endpoint(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.USE, B, C))
    await node.rest()
    assert report(node) == ServiceReport(generation=7, unused=frozenset({C}))
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2 10.0.0.3"))
    await node.rest()
    assert report(node) == ServiceReport(generation=7)


async def test_counting_changes_no_endpoint(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.COUNT, A))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert node.diary.drains[name("web")].counted == {A}


async def test_nothing_is_reported_before_the_data_plane_has_it(node: Node) -> None:
    node.data_plane.broken = "no worker is in service"
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    assert name("web") not in node.diary.drains
    await node.pass_time(60.0)
    assert report(node).generation == 7


async def test_pod_is_unused_until_the_data_plane_has_it(node: Node) -> None:
    node.tracker.put_service(SOURCE, asking(Want.USE, C))
    await node.rest()
    node.data_plane.broken = "no worker is in service"
    node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2 10.0.0.3"))
    await node.rest()
    assert report(node).unused == {C}
    await node.pass_time(60.0)
    assert report(node).unused == set()


async def test_service_without_any_other_endpoint_than_an_unready_one_refuses_as_before(node: Node) -> None:
    node.tracker.put_slice(SOURCE, endpoint_slice("web", (Endpoint(A, ready=False, serving=False),)))
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    assert node.answers(WEB) is Fate.REFUSED


# Addresses that are used again


async def test_new_pod_with_the_address_of_a_drained_one_gets_connections(node: Node) -> None:
    node.tracker.put_slice(SOURCE, listing("uid-of-old"))
    node.tracker.put_service(SOURCE, asking_about((Want.DRAIN, "old")))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    node.tracker.put_slice(SOURCE, listing("uid-of-new"))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    state = node.diary.drains[name("web")]
    assert not state.draining
    assert not state.report.kept
    assert state.counted == {A}, "connections from before may be open"


async def test_new_pod_gets_connections_while_the_drained_one_is_still_listed(node: Node) -> None:
    node.tracker.put_slice(SOURCE, listing("uid-of-old", "uid-of-new"))
    node.tracker.put_service(SOURCE, asking_about((Want.DRAIN, "old")))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")


@pytest.mark.parametrize(
    ("pod", "drains"),
    [
        pytest.param("", True, id="no-pod"),
        pytest.param("old", True, id="name"),
        pytest.param("new", False, id="another-name"),
        pytest.param("uid-of-old", True, id="uid"),
        pytest.param("uid-of-new", False, id="another-uid"),
    ],
)
async def test_endpoint_drains_if_it_is_the_pod_or_names_none(node: Node, pod: str, drains: bool) -> None:
    node.tracker.put_slice(SOURCE, listing(pod))
    node.tracker.put_service(SOURCE, asking_about((Want.DRAIN, "old")))
    await node.rest()
    assert node.diary.drains[name("web")].draining == ({A} if drains else set())


async def test_request_without_a_uid_is_about_whatever_pod_has_the_address(node: Node) -> None:
    node.tracker.put_slice(SOURCE, listing("uid-of-new"))
    node.tracker.put_service(SOURCE, asking(Want.DRAIN, A))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")


async def test_pod_is_unused_while_its_address_is_still_another_pods(node: Node) -> None:
    node.tracker.put_slice(SOURCE, listing("uid-of-old"))
    node.tracker.put_service(SOURCE, asking_about((Want.USE, "new")))
    await node.rest()
    assert report(node).unused == {A}
    node.tracker.put_slice(SOURCE, listing("uid-of-new", ready=False))
    await node.rest()
    assert report(node).unused == {A}
    node.tracker.put_slice(SOURCE, listing("uid-of-new"))
    await node.rest()
    assert report(node).unused == set()


@pytest.mark.parametrize("listed", ["old", "new"])
async def test_newest_request_decides_whether_an_address_is_used(node: Node, listed: str) -> None:
    node.tracker.put_slice(SOURCE, listing(f"uid-of-{listed}"))
    node.tracker.put_service(SOURCE, asking_about((Want.USE, "old"), (Want.USE, "new")))
    await node.rest()
    assert report(node).unused == (set() if listed == "new" else {A})


def test_many_requests_for_one_address_cost_one_look_for_each_endpoint() -> None:
    """With as many requests as endpoints the calls are in proportion to the sum, not to the product."""
    many = 400
    listed = tuple(DrainRequest("test", f"p{n}", (A,), Want.DRAIN, 7, 1500.0, f"u{n}") for n in range(many))
    slices = (endpoint_slice("web", tuple(Endpoint(A, pod=f"uid-{n}") for n in range(many))),)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = drained(slices, DrainRequests(7, listed), 1000.0)
    finally:
        sys.setprofile(None)
    assert found == slices
    assert calls < 20 * many


# The texts of annotations


def test_requests_and_reports_survive_their_texts() -> None:
    requests = asking(Want.DRAIN, A, Address("fd00::1")).drain
    assert requests is not None
    assert decode_requests(encode_requests(requests)) == requests
    named = asking_about((Want.USE, "a")).drain
    assert named is not None
    assert decode_requests(encode_requests(named)) == named
    found = NodeReport(
        {ServiceName("shop", "web"): ServiceReport(9, unused=frozenset({A}), kept=frozenset({B}), open={C: 3})}
    )
    assert decode_report(encode_report(found)) == found


def test_thousand_requests_with_usual_names_fit_into_the_annotations_of_an_object() -> None:
    uid = "6f1c1c9e-2f0e-4c43-9c62-0d0f8f1d7a55"
    request = DrainRequest(
        "deployment/storefront-api", "storefront-api-6d4f8b7c9d-x2xzv", (Address("10.244.100.100"),), Want.DRAIN,
        1763827200123, 1763827320.123, uid,
    )  # fmt: skip
    assert len(encode_requests(DrainRequests(1763827200123, (request,) * 1000))) < 256 * 1024


def test_unknown_fields_are_ignored() -> None:
    text = (
        '{"generation":1,"colour":"red","requests":[{"want":"use","owner":"a","pod":"b","addresses":[],'
        '"since":1,"until":1,"zone":"x"}]}'
    )
    assert decode_requests(text).requests == (DrainRequest("a", "b", (), Want.USE, 1, 1.0),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "allowed is JSON"),
        ("[]", "allowed is an object"),
        ('{"generation": -1}', "generation: found -1"),
        ('{"generation": true}', "generation: found true"),
        ('{"generation": 1, "requests": {}}', "requests: found {}"),
        (
            '{"generation":1,"requests":[{"want":"use","owner":"a","pod":"b","addresses":[],"since":1,"until":NaN}]}',
            "requests[0].until: found NaN",
        ),
        (
            '{"generation":1,"requests":[{"want":"use","addresses":["10.0.0.1","10.0.0.2","fd00::1"]}]}',
            "requests[0].addresses: found 3; allowed are at most 2",
        ),
        ('{"generation": 1, "requests": [{"want": "stop"}]}', "allowed are drain, use, ready, count"),
        (
            '{"generation":1,"requests":[{"want":"use","owner":"a","pod":"b","addresses":["x"],"since":1,"until":1}]}',
            'requests[0].addresses: found "x"',
        ),
        (
            '{"generation":1,"requests":[{"want":"use","owner":"a","pod":"b","uid":7,"addresses":[],"since":1,"until":1}]}',
            "requests[0].uid: found 7",
        ),
        ('{"generation": 1, "requests": [' + ",".join(["{}"] * 1001) + "]}", "requests: found 1001"),
        ("[" * 100_000, "allowed is JSON"),
    ],
)
def test_unusable_requests_name_their_fault(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="found") as raised:
        decode_requests(text)
    assert fault in str(raised.value)


async def test_a_pod_whose_gate_waits_is_used_before_its_slice_has_it_as_ready(node: Node) -> None:
    node.tracker.put_slice(SOURCE, listing("uid-of-a", ready=False))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    node.tracker.put_service(SOURCE, asking_about((Want.READY, "a")))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.1:8080 10.0.0.2:8080")
    assert report(node) == ServiceReport(generation=1)
    node.tracker.put_slice(SOURCE, listing("uid-of-another", ready=False))
    await node.rest()
    assert node.answers(WEB) == targets("10.0.0.2:8080")
    assert report(node).unused == {A}


def test_a_pod_whose_gate_waits_has_the_hints_that_it_gets_when_it_is_ready() -> None:
    waits = Endpoint(A, ready=False, pod="uid-of-a", node="n1", zone="z1")
    hinted = Endpoint(B, node="n2", zone="z2", zone_hints=frozenset({"z2"}))
    asked = asking_about((Want.READY, "a")).drain
    assert asked is not None
    ((used, _),) = (it.endpoints for it in drained([endpoint_slice("web", (waits, hinted))], asked, now=1200.0))
    assert (used.ready, used.zone_hints, used.node_hints) == (True, frozenset({"z1"}), frozenset())
    without = replace(hinted, zone_hints=frozenset())
    ((used, _),) = (it.endpoints for it in drained([endpoint_slice("web", (waits, without))], asked, now=1200.0))
    assert (used.ready, used.zone_hints) == (True, frozenset()), "a Service without hints stays without"
