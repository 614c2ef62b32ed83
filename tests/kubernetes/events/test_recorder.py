"""Events on the API server: created, counted, sent again and dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.daemon.service_events import Reason
from kubeproxy.kubernetes.events.recorder import MAX_MESSAGE, TRIES, EventRecorder
from tests.kubernetes.harness import connected
from tests.support.apiserver import ApiServer, Cluster, Fault
from tests.support.clock import Clock
from tests.support.waiting import until

NOW = 1_795_218_000.25
STARTING: Mapping[str, Any] = {
    "kind": "Node",
    "namespace": "",
    "name": "node-a",
    "type": "Normal",
    "reason": Reason.STARTING,
    "message": "Starting kube-proxy.",
}
CONFLICT: Mapping[str, Any] = {
    "kind": "Service",
    "namespace": "demo",
    "name": "web",
    "type": "Warning",
    "reason": Reason.NOT_AS_ASKED,
    "message": "node port 30080 is taken",
}
EVENTS = "/api/v1/namespaces"


@asynccontextmanager
async def recording(server: ApiServer, clock: Clock | None = None) -> AsyncIterator[EventRecorder]:
    """A running recorder."""
    async with connected(server.url) as client:
        recorder = EventRecorder(
            client=client,
            node_name="node-a",
            rights="bind a role",
            clock=clock or Clock(NOW),
            retry_s=(0.005, 0.01),
            random=Random(7),
        )
        task = asyncio.ensure_future(recorder.run())
        try:
            yield recorder
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def events(server: ApiServer) -> list[Mapping[str, Any]]:
    return [stored.object for stored in server.cluster.at("events", server.cluster.version).values()]


async def test_an_event_of_a_node_as_kube_proxy_sends_it() -> None:
    async with ApiServer() as server, recording(server) as recorder:
        recorder.record(**STARTING)
        await until(lambda: events(server))
        (event,) = events(server)
    metadata = event["metadata"]
    assert (metadata["namespace"], metadata["name"]) == ("default", f"node-a.{round(NOW * 1e9):x}")
    assert {key: value for key, value in event.items() if key != "metadata"} == {
        "involvedObject": {"kind": "Node", "name": "node-a", "uid": "node-a", "apiVersion": "v1"},
        "reason": "Starting",
        "message": "Starting kube-proxy.",
        "type": "Normal",
        "source": {"component": "kube-proxy", "host": "node-a"},
        "firstTimestamp": "2026-11-20T23:40:00Z",
        "lastTimestamp": "2026-11-20T23:40:00Z",
        "count": 1,
        "reportingComponent": "kube-proxy",
        "reportingInstance": "node-a",
    }


async def test_an_event_of_a_service_is_in_its_namespace() -> None:
    async with ApiServer() as server, recording(server) as recorder:
        recorder.record(**CONFLICT, uid="1234")
        recorder.record(**{**CONFLICT, "message": "x" * 5000})
        await until(lambda: len(events(server)) == 2)
        first, second = sorted(events(server), key=lambda event: len(event["message"]))
    assert first["metadata"]["namespace"] == "demo"
    assert first["involvedObject"] == {
        "kind": "Service", "namespace": "demo", "name": "web", "uid": "1234", "apiVersion": "v1"
    }  # fmt: skip
    assert second["message"] == "x" * MAX_MESSAGE


async def test_the_longest_name_fits_into_an_event_name() -> None:
    name = "a" * 234 + "." + "b" * 18
    async with ApiServer() as server, recording(server) as recorder:
        recorder.record(**{**STARTING, "name": name})
        await until(lambda: events(server))
        assert events(server)[0]["involvedObject"]["name"] == name


async def test_equal_events_raise_the_count_on_the_server() -> None:
    clock = Clock(NOW)
    async with ApiServer() as server, recording(server, clock) as recorder:
        recorder.record(**CONFLICT)
        await until(lambda: events(server))
        clock.now += 60
        recorder.record(**CONFLICT)
        recorder.record(**CONFLICT)
        await until(lambda: events(server)[0]["count"] == 3)
        (event,) = events(server)
        assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-11-20T23:40:00Z", "2026-11-20T23:41:00Z")
        assert (server.counts["create events"], server.counts["patch events"]) == (1, 1)


async def test_an_event_that_the_server_deleted_is_created_again() -> None:
    async with ApiServer() as server, recording(server) as recorder:
        recorder.record(**CONFLICT)
        await until(lambda: events(server))
        server.cluster.delete("events", "demo", events(server)[0]["metadata"]["name"])
        recorder.record(**CONFLICT)
        await until(lambda: events(server))
        assert events(server)[0]["count"] == 1


async def test_simultaneous_events_have_different_names() -> None:
    async with ApiServer() as server, recording(server) as recorder:
        for number in range(20):
            recorder.record(**{**CONFLICT, "reason": f"Reason{number}"})
        await until(lambda: len(events(server)) == 20)
        assert server.counts["patch events"] == 0


async def test_similar_events_become_one_that_is_counted() -> None:
    async with ApiServer() as server, recording(server) as recorder:
        for number in range(9):
            recorder.record(**{**CONFLICT, "message": str(number)})
        recorder.record(**{**CONFLICT, "message": "tenth"})
        await until(lambda: len(events(server)) == 10)
        recorder.record(**{**CONFLICT, "message": "eleventh"})
        await until(lambda: server.counts["patch events"] == 1)
        assert len(events(server)) == 10
        (combined,) = [event for event in events(server) if event["message"].startswith("(combined")]
        assert combined["message"] == "(combined from similar events): eleventh"
        assert combined["count"] == 2


@pytest.mark.parametrize("kind", ["drop", "reset", "cut", "status"])
async def test_events_are_sent_again_after_temporary_errors(kind: str) -> None:
    async with ApiServer() as server, recording(server) as recorder:
        server.inject(Fault(kind=kind, path=EVENTS, times=3, status=503))
        recorder.record(**CONFLICT)
        await until(lambda: events(server) and server.counts["create events"] + server.counts["patch events"] > 1)
        recorder.record(**{**CONFLICT, "message": "another"})
        await until(lambda: any(event["message"] == "another" for event in events(server)))
        first = [event["count"] for event in events(server) if event["message"] == CONFLICT["message"]]
        assert first == [1], "the event exists once, however often it was sent"


async def test_an_unreachable_server_blocks_no_caller() -> None:
    server = ApiServer()
    await server.start()
    await server.stop()
    async with recording(server) as recorder:
        begun = time.perf_counter()
        for number in range(5000):
            recorder.record(**{**CONFLICT, "name": f"web-{number}"})
        assert time.perf_counter() - begun < 5
        await asyncio.sleep(0.02)
        await server.start()
        await until(lambda: len(events(server)) > 20)
    await server.stop()


async def test_a_missing_permission_is_logged_once() -> None:
    with capture_logs() as logs:
        async with ApiServer(Cluster()) as server, recording(server) as recorder:
            server.inject(Fault(path=EVENTS, status=403, times=-1))
            recorder.record(**STARTING)
            await until(lambda: warnings(logs))
            assert server.counts["create events"] == TRIES
            for number in range(3):
                recorder.record(**{**CONFLICT, "name": f"web-{number}"})
            await until(lambda: server.counts["create events"] >= TRIES + 3)
            await asyncio.sleep(0.1)
            assert server.counts["create events"] == TRIES + 3, "later events get one try each"
            assert len(warnings(logs)) == 1
            assert warnings(logs)[0]["hint"] == "bind a role"
            server.clear_faults()
            recorder.record(**CONFLICT)
            await until(lambda: events(server))
            server.inject(Fault(path=EVENTS, status=403, times=-1))
            recorder.record(**STARTING)
            await until(lambda: len(warnings(logs)) == 2)


async def test_events_survive_a_server_that_forbids_everything_at_start() -> None:
    with capture_logs() as logs:
        async with ApiServer() as server, recording(server) as recorder:
            server.forbidden = True
            recorder.record(**STARTING)
            await until(lambda: server.counts["create events"] >= 3)
            server.forbidden = False
            await until(lambda: events(server))
    assert warnings(logs) == []


async def test_permanently_refused_events_are_not_sent_again() -> None:
    with capture_logs() as logs:
        async with ApiServer() as server, recording(server) as recorder:
            recorder.record(**{**STARTING, "name": "Not_A_Name"})
            recorder.record(**STARTING)
            await until(lambda: events(server))
            assert server.counts["create events"] == 2
    assert len(warnings(logs)) == 1
    assert "422" in warnings(logs)[0]["seen"]


def warnings(logs: list[Any]) -> list[Any]:
    return [line for line in logs if "API server refuses events" in line["event"]]


def both_sent(recorder: EventRecorder) -> bool:
    return recorder.sent == 2


async def test_the_same_event_of_many_nodes_is_there_once() -> None:
    async with ApiServer() as server:
        for at in range(3):
            async with recording(server, Clock(NOW + at)) as recorder:
                recorder.record(**CONFLICT, shared=True)
                recorder.record(**STARTING)
                await until(partial(both_sent, recorder))
                assert recorder.dropped == 0
        found = [event["reason"] for event in events(server)]
        assert found.count(Reason.NOT_AS_ASKED) == 1
        assert found.count(Reason.STARTING) == 3
