"""The whole source against the test API server: it is in step, and again after every fault."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.kubernetes.informer.reflector_state import Phase, ReflectorState
from kubeproxy.model import ServiceName, SliceName
from kubeproxy.sources.kubernetes.source import KubernetesSource
from tests.kubernetes.harness import QUICK, Remembering, connected, watching
from tests.support.apiserver import V1_20, V1_36, ApiServer, Break, Cluster, Fault, Version
from tests.support.apiserver.generate import endpoint_slice, endpoints, fill, service
from tests.support.apiserver.recordings import exchange, exchanges, pages, stream
from tests.support.apiserver.replay import ReplayServer
from tests.support.waiting import until

NAME = ServiceName("demo", "service-0")


def cluster(services: int = 3, each: int = 2) -> Cluster:
    found = Cluster(version=100)
    fill(found, services=services, endpoints_each=each)
    return found


@asynccontextmanager
async def running(server: ApiServer, **settings: Any) -> AsyncIterator[tuple[KubernetesSource, Remembering]]:
    """A source in step with a server."""
    async with connected(server.url) as client, watching(client, **settings) as (source, sink):
        await until(lambda: sink.complete and in_step(source))
        yield source, sink


def in_step(source: KubernetesSource) -> bool:
    return all(state.phase is Phase.WATCHING and state.behind_s == 0 for state in source.state())


def state_of(source: KubernetesSource, resource: str) -> ReflectorState:
    return next(state for state in source.state() if state.resource == resource)


def names(server: ApiServer) -> set[str]:
    return set(server.cluster.at("services", server.cluster.version))


def equal(server: ApiServer, sink: Remembering) -> bool:
    """The sink has the Services of the cluster."""
    return {str(name) for name in sink.services} == names(server)


# In step


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=lambda version: version.name)
async def test_lists_then_follows(version: Version) -> None:
    server = ApiServer(cluster(), version=version)
    if version is V1_20:
        for number in range(3):
            server.cluster.put("endpoints", endpoints(number, [f"10.0.0.{number * 2}", f"10.0.0.{number * 2 + 1}"]))
    async with server, running(server) as (source, sink):
        assert equal(server, sink)
        assert sink.addresses(1) == {"10.0.0.2", "10.0.0.3"}
        server.cluster.put("services", service(7))
        await until(lambda: ServiceName("demo", "service-7") in sink.services)
        if version is V1_20:
            server.cluster.put("endpoints", endpoints(7, ["10.9.9.9"]))
        else:
            server.cluster.put("endpointslices", endpoint_slice(7, ["10.9.9.9"]))
        await until(lambda: sink.addresses(7) == {"10.9.9.9"})
        server.cluster.delete("services", "demo", "service-1")
        await until(lambda: ServiceName("demo", "service-1") not in sink.services)
        if version is V1_20:
            server.cluster.delete("endpoints", "demo", "service-7")
        else:
            server.cluster.delete("endpointslices", "demo", "service-7-a")
        await until(lambda: sink.addresses(7) == set())
        assert state_of(source, "services").resource_version == str(server.cluster.last_change("services"))
        assert all(state.lists == 1 and not state.failures for state in source.state())


async def test_requests_are_those_of_kube_proxy() -> None:
    async with ApiServer(cluster()) as server, running(server, pace=replace(QUICK, watch_s=(300, 600))):
        asked = [request for request in server.requests if request.path == "/api/v1/services"]
        selector = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
        assert asked[0].query == {"labelSelector": selector, "limit": "500", "resourceVersion": "0"}
        watch = dict(asked[1].query)
        assert 300 <= int(watch.pop("timeoutSeconds")) <= 600
        assert watch == {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(server.cluster.last_change("services")),
        }


@pytest.mark.parametrize("changed", [{"clusterIP": "None", "clusterIPs": ["None"]}, {"type": "ExternalName"}])
async def test_a_service_of_another_proxy_is_removed(changed: dict[str, Any]) -> None:
    async with ApiServer(cluster()) as server, running(server) as (_, sink):
        item = service(0)
        server.cluster.put("services", {**item, "spec": {**item["spec"], **changed}})
        await until(lambda: NAME not in sink.services)
        server.cluster.put("services", item)
        await until(lambda: NAME in sink.services)


async def test_a_label_takes_an_object_out_of_the_selection_and_back() -> None:
    async with ApiServer(cluster()) as server, running(server) as (_, sink):
        item = service(0)
        item["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "other"}
        server.cluster.put("services", item)
        await until(lambda: NAME not in sink.services)
        server.cluster.put("services", service(0))
        await until(lambda: NAME in sink.services)
        hidden = endpoint_slice(0, ["10.0.0.1"])
        hidden["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
        server.cluster.put("endpointslices", hidden)
        await until(lambda: not sink.addresses(0))


async def test_a_slice_moves_its_endpoints_to_another_service() -> None:
    async with ApiServer(cluster()) as server, running(server) as (_, sink):
        moved = endpoint_slice(0, ["10.0.0.77"])
        moved["metadata"]["labels"]["kubernetes.io/service-name"] = "service-1"
        server.cluster.put("endpointslices", moved)
        await until(lambda: "10.0.0.77" in sink.addresses(1))
        assert sink.addresses(0) == set()


async def test_endpoints_that_lose_a_subset_lose_its_slices() -> None:
    server = ApiServer(cluster(1), version=V1_20)
    two = endpoints(0, ["10.0.0.1"])
    two["subsets"].append({"addresses": [{"ip": "10.0.0.2"}], "ports": [{"name": "q", "port": 9, "protocol": "TCP"}]})
    server.cluster.put("endpoints", two)
    async with server, running(server) as (_, sink):
        assert sink.addresses(0) == {"10.0.0.1", "10.0.0.2"}
        server.cluster.put("endpoints", endpoints(0, ["10.0.0.1"]))
        await until(lambda: sink.addresses(0) == {"10.0.0.1"})
        server.cluster.put("endpoints", {**endpoints(0, []), "subsets": None})
        await until(lambda: sink.slices == {})


@pytest.mark.parametrize("name", ["v1.36/watch/services.ndjson", "v1.36/watch/endpointslices.ndjson"])
async def test_the_recorded_hours_replayed_end_where_the_cluster_did(name: str) -> None:
    """A recorded list, then its recorded watch: the sink ends in the state of the events."""
    recorded = stream(name)
    slices = "slices" in name
    listed = exchange(f"v1.36/{'endpointslices' if slices else 'services'}/list-selector.json")
    assert listed is not None
    alive = {item["metadata"]["name"] for item in listed.json["items"] if item["metadata"]["namespace"] == "demo"}
    for line in recorded.lines:
        found = json.loads(line)
        if found["type"] == "DELETED":
            alive.discard(found["object"]["metadata"]["name"])
        elif found["type"] in ("ADDED", "MODIFIED"):
            alive.add(found["object"]["metadata"]["name"])
    async with ReplayServer([listed, recorded]) as server, connected(server.url) as client:
        sink = Remembering()
        source = KubernetesSource(client=client, sink=sink, node_name="node-a", pace=QUICK, random=Random(1))
        reflector = source._reflectors[1 if slices else 0]
        reflector._choose = source_resource(source, slices)
        task = asyncio.ensure_future(reflector.run())
        last = json.loads(recorded.lines[-1])["object"]["metadata"]["resourceVersion"]
        await until(lambda: reflector.state().resource_version == last)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    served = {name.name for name in (sink.slices if slices else sink.services)} - {"kubernetes"}
    assert served <= alive
    assert len(served) > 10
    assert "churn" not in served


def source_resource(source: KubernetesSource, slices: bool) -> Any:
    async def choose() -> Any:
        return source._slices if slices else source._services

    return choose


async def test_a_slice_of_a_thousand_endpoints() -> None:
    async with ApiServer(cluster()) as server, running(server) as (_, sink):
        addresses = [f"10.1.{index >> 8}.{index & 255}" for index in range(1000)]
        server.cluster.put("endpointslices", endpoint_slice(0, addresses))
        await until(lambda: sink.addresses(0) == set(addresses))


# Pages of lists


async def test_a_failing_cache_leads_to_pages_from_storage() -> None:
    pace = replace(QUICK, page=4)
    async with ApiServer(cluster(30)) as server:
        server.inject(Fault(path="/api/v1/services", query="resourceVersion=0", status=500, times=1))
        async with running(server, pace=pace) as (_, sink):
            assert equal(server, sink)
            asked = [request.query for request in server.requests if request.path == "/api/v1/services"]
            following = [query for query in asked if "continue" in query]
            assert len(following) == 7
            assert all(query["limit"] == "4" and "resourceVersion" not in query for query in following)


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=lambda version: version.name)
async def test_a_list_that_expires_between_pages_starts_again(version: Version) -> None:
    server = ApiServer(cluster(30), version=version)
    async with server, connected(server.url) as client:
        server.inject(Fault(path="/api/v1/services", query="resourceVersion=0", status=500))
        server.inject(Fault(path="/api/v1/services", query="continue", kind="slow", delay_s=0.3))
        async with watching(client, pace=replace(QUICK, page=10)) as (source, sink):
            await until(lambda: any("continue" in request.query for request in server.requests))
            server.cluster.delete("services", "demo", "service-0")  # on the first page already
            server.cluster.expire()
            await until(lambda: sink.complete and in_step(source))
            assert equal(server, sink)
            assert NAME not in sink.services
            assert state_of(source, "services").failures["expired"] == 1


async def test_recorded_pages_are_joined() -> None:
    recorded = pages("v1.36/services/list-limit10-selector-pages.json")
    refused = exchange("v1.36/errors/504-list-timeout-3s.json")
    assert refused is not None
    quiet = stream("v1.36/watch/services-timeout-5s.ndjson")
    async with ReplayServer([refused, *recorded, quiet]) as server, connected(server.url) as client:
        source = KubernetesSource(client=client, sink=(sink := Remembering()), node_name="node-a", pace=QUICK)
        task = asyncio.ensure_future(source._reflectors[0].run())
        await until(lambda: sink.listed)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    whole = exchange("v1.36/services/list-selector.json")
    assert whole is not None
    items = {item["metadata"]["name"] for item in whole.json["items"]}
    assert {name.name for name in sink.services} <= items
    assert len(sink.services) > 20


@pytest.mark.parametrize("kind", ["endless", "cut"])
async def test_a_failed_list_withdraws_nothing(kind: str) -> None:
    async with ApiServer(cluster()) as server, running(server, pace=replace(QUICK, list_s=0.5)) as (source, sink):
        server.inject(Fault(kind=kind, path="/api/v1/services", watch=False, times=3))
        server.cluster.expire()
        server.cluster.put("services", service(9))
        server.break_watches(Break.ERROR_410)
        await until(lambda: state_of(source, "services").lists == 2)
        assert equal(server, sink)
        assert sum(state_of(source, "services").failures.values()) >= 4


# Watches that end, break and send garbage


async def test_a_clean_end_is_followed_by_a_watch_not_by_a_list() -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        watches = server.counts["watch services"]
        server.break_watches(Break.END)
        await until(lambda: server.counts["watch services"] > watches)
        server.cluster.put("services", service(8))
        await until(lambda: equal(server, sink))
        assert server.counts["list services"] == 1
        assert not state_of(source, "services").failures


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (Break.CUT, None),
        (Break.RESET, None),
        (Break.HALF_LINE, None),
        (Break.HALF_LINE_END, "half line"),
        (Break.ERROR_500, "status 500"),
    ],
)
async def test_a_broken_watch_resumes_at_its_last_version(how: Break, cause: str | None) -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        server.break_watches(how)
        await until(lambda: not server.watches or state_of(source, "services").failures)
        server.cluster.put("services", service(8))
        server.cluster.delete("services", "demo", "service-1")
        await until(lambda: equal(server, sink) and in_step(source))
        assert server.counts["list services"] == server.counts["list endpointslices"] == 1
        assert cause is None or state_of(source, "services").failures == {cause: 1}


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=lambda version: version.name)
async def test_an_expired_version_leads_to_a_new_list(version: Version) -> None:
    """1.20 leaves the stream open and silent after its 410; the source does not wait for its end."""
    server = ApiServer(cluster(), version=version)
    async with server, running(server) as (source, sink):
        await server.stop()
        server.cluster.delete("services", "demo", "service-1")
        server.cluster.put("services", service(8))
        server.cluster.expire()
        lists = server.counts["list services"]
        await server.start()
        await until(lambda: equal(server, sink) and in_step(source))
        assert server.counts["list services"] == lists + 1
        assert state_of(source, "services").failures["expired"] == 1
        # Nothing was withdrawn in between: one replacement, and no removal by name.
        assert sink.calls.count("replace services") == 2
        assert not [call for call in sink.calls if call.startswith("remove demo/")]


@pytest.mark.parametrize("how", [Break.GARBAGE, Break.UNKNOWN_TYPE, Break.ENDLESS_LINE])
async def test_a_garbage_line_leads_to_a_new_list(how: Break) -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        server.break_watches(how, "services")
        await until(lambda: state_of(source, "services").lists == 2 and in_step(source))
        assert state_of(source, "services").failures
        server.cluster.put("services", service(8))
        await until(lambda: equal(server, sink))


async def test_empty_lines_are_ignored() -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        server.break_watches(Break.EMPTY_LINES)
        server.cluster.put("services", service(8))
        await until(lambda: equal(server, sink))
        assert all(not state.failures and state.watches == 1 for state in source.state())


async def test_a_silent_watch_times_out_and_resumes() -> None:
    pace = replace(QUICK, watch_s=(1, 1), margin_s=0.2)
    async with ApiServer(cluster()) as server, running(server, pace=pace) as (source, sink):
        server.break_watches(Break.STALL)
        server.cluster.put("services", service(8))
        await until(lambda: equal(server, sink))
        assert state_of(source, "services").failures == {"timeout": 1}
        assert server.counts["list services"] == 1


async def test_bookmarks_advance_the_version_of_a_quiet_watch() -> None:
    async with ApiServer(cluster(), bookmark_s=0.02) as server, running(server) as (source, sink):
        foreign = service(9)
        foreign["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "other"}
        version = server.cluster.put("services", foreign)
        await until(lambda: state_of(source, "services").resource_version == str(version))
        assert state_of(source, "services").events == 0
        assert len(sink.services) == 3


async def test_watches_that_end_at_once_do_not_cause_a_hot_loop() -> None:
    quiet = stream("v1.36/watch/services-timeout-5s.ndjson")
    listed = exchange("v1.36/services/list-selector.json")
    assert listed is not None
    async with ReplayServer([listed, quiet]) as server, connected(server.url) as client:
        pace = replace(QUICK, retry_s=(0.1, 1.0), settle_s=1.0)
        source = KubernetesSource(client=client, sink=Remembering(), node_name="node-a", pace=pace)
        task = asyncio.ensure_future(source._reflectors[0].run())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert 2 <= len(server.requests) < 30, "without a pause there would be hundreds"
        assert source.state()[0].failures["short watch"] >= 1


async def test_watches_that_fail_after_their_start_are_no_success() -> None:
    failing = stream("v1.36/watch/services-rv0.ndjson")
    assert b'"code":500' in failing.body
    listed = exchange("v1.36/services/list-selector.json")
    assert listed is not None
    with capture_logs() as logs:
        async with ReplayServer([listed, failing]) as server, connected(server.url) as client:
            source = KubernetesSource(client=client, sink=(sink := Remembering()), node_name="node-a", pace=QUICK)
            task = asyncio.ensure_future(source._reflectors[0].run())
            await until(lambda: len(server.requests) > 15)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert source.state()[0].behind_s > 0
    assert len(sink.services) > 20
    assert not [log for log in logs if log["event"] == "API server back"]
    assert len([log for log in logs if log["log_level"] == "warning"]) == 1


# Objects with faults


async def test_a_faulty_object_is_logged_once_and_the_others_are_served() -> None:
    broken = service(1)
    broken["spec"]["ports"] = [{"name": "p", "protocol": "TCP", "port": 70000}]
    with capture_logs() as logs:
        async with ApiServer(cluster()) as server, running(server) as (source, sink):
            server.cluster.put("services", broken)
            await until(lambda: state_of(source, "services").faulty == 1)
            broken["metadata"]["annotations"] = {"a": "b"}
            server.cluster.put("services", broken)
            server.cluster.put("services", service(8))
            await until(lambda: ServiceName("demo", "service-8") in sink.services)
            server.cluster.delete("services", "demo", "service-1")
            await until(lambda: state_of(source, "services").faulty == 0)
    named = [log for log in logs if log["event"] == "parts of object not served"]
    assert [log["name"] for log in named] == ["demo/service-1"]


async def test_an_object_of_wrong_types_keeps_its_last_version() -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        bent = service(0)
        bent["spec"]["ports"] = "eighty"
        server.cluster.put("services", bent)
        server.cluster.put("services", service(8))
        await until(lambda: ServiceName("demo", "service-8") in sink.services)
        assert NAME in sink.services
        assert state_of(source, "services").faulty == 1
        assert server.counts["list services"] == 1


# A server that is lost, starting or overloaded, or none


async def test_an_outage_changes_nothing_and_missed_deletions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeproxy.sources.kubernetes.source.BEHIND_S", 0.1)
    server = ApiServer(cluster())
    await server.start()
    with capture_logs() as logs:
        async with running(server) as (source, sink):
            calls = list(sink.calls)
            await server.stop()
            await until(lambda: state_of(source, "services").failures.get("refused", 0) >= 5)
            assert sink.calls == calls
            await until(lambda: (source.complaint() or "").startswith("services: changes are not known: "))
            server.cluster.delete("services", "demo", "service-1")
            server.cluster.delete("endpointslices", "demo", "service-1-a")
            server.cluster.expire()
            await server.start()
            await until(lambda: equal(server, sink) and in_step(source))
            assert SliceName("demo", "service-1-a") not in sink.slices
            assert source.complaint() is None
            await server.stop()
    lost = [log for log in logs if "API server lost" in log["event"]]
    back = [log for log in logs if log["event"] == "API server back"]
    assert len(lost) == len(back) == 1
    assert "connection refused" in lost[0]["seen"]
    assert lost[0]["log_level"] == "warning"


async def test_a_short_outage_needs_no_list() -> None:
    server = ApiServer(cluster())
    await server.start()
    async with running(server) as (source, sink):
        await server.stop()
        server.cluster.delete("services", "demo", "service-1")
        await until(lambda: state_of(source, "services").failures.get("refused", 0) >= 1)
        await server.start()
        await until(lambda: equal(server, sink) and in_step(source))
        assert server.counts["list services"] == 1
        await server.stop()


async def test_a_starting_server_is_retried_with_few_log_lines() -> None:
    """Refused, then 403 for everything (its RBAC rules are not loaded), then 503, then good; three log lines in all."""
    server = ApiServer(cluster())
    await server.start()
    await server.stop()
    with capture_logs() as logs:
        async with connected(server.url) as client, watching(client) as (source, sink):
            await until(lambda: all(state.failures.get("refused", 0) >= 2 for state in source.state()))
            server.forbidden = True
            await server.start()
            await until(lambda: all(state.failures.get("forbidden", 0) >= 2 for state in source.state()))
            said = source.complaint() or ""
            assert re.match("services: not listed yet: .*answered 403: Forbidden", said), said
            server.inject(Fault(status=503, retry_after="0", times=4))
            server.forbidden = False
            await until(lambda: sink.complete and in_step(source))
            assert equal(server, sink)
            assert sum(state.failures.get("unavailable", 0) for state in source.state()) >= 2
            await server.stop()
    events = [log for log in logs if "API server" in log["event"]]
    assert events[0]["log_level"] == "warning"
    assert [log["log_level"] for log in events].count("warning") == 1
    assert events[-1]["event"] == "API server back"
    assert any("RBAC" in log.get("hint", "") for log in events)
    assert len(events) <= 5


async def test_retry_after_is_waited_for() -> None:
    async with ApiServer(cluster()) as server, connected(server.url) as client:
        busy = "Too many requests, please try again later.\n"
        server.inject(Fault(path="/api/v1/services", status=429, retry_after="1", content_type="text/plain", body=busy))
        pace = replace(QUICK, retry_after_s=0.4)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with watching(client, pace=pace) as (source, sink):
            await until(lambda: "services" in sink.listed)
            assert loop.time() - begun >= 0.39
            assert state_of(source, "services").failures == {"too many requests": 1}
            assert "Too many requests" in state_of(source, "services").last_error


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(kind="drop", times=6), "no response"),
        (Fault(kind="reset", times=6), "reset"),
        (Fault(kind="hang", times=2), ""),
        (Fault(status=200, content_type="text/html", body="<html>Sign in</html>", times=2), "not JSON"),
        (Fault(status=500, times=2), "status 500"),
        (Fault(status=401, times=4), "unauthorized"),
        (Fault(status=200, body="{}", times=2), "garbage"),
        (Fault(status=200, body='{"kind":"ServiceList"', times=2), "garbage"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_faults_of_the_first_list_are_retried(fault: Fault, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubeproxy.kubernetes.client import policy

    monkeypatch.setattr(policy, "ANSWER_S", 0.5)
    async with ApiServer(cluster()) as server:
        server.inject(fault)
        async with running(server) as (source, sink):
            assert equal(server, sink)
            causes = set().union(*(state.failures for state in source.state()))
            assert (cause or "timeout") in causes


async def test_endpointslices_are_used_once_the_server_has_them() -> None:
    server = ApiServer(cluster(1), version=V1_20)
    server.cluster.put("endpoints", endpoints(0, ["10.0.0.1"]))
    async with server, running(server) as (source, sink):
        assert sink.addresses(0) == {"10.0.0.1"}
        assert state_of(source, "endpoints").lists == 1
        server.version = V1_36
        server.cluster.expire()
        server.break_watches(Break.CUT)
        await until(lambda: sink.addresses(0) == {"10.0.0.0", "10.0.0.1"})
        assert state_of(source, "endpointslices").lists == 2


async def test_recorded_discovery_decides_between_slices_and_endpoints() -> None:
    for version, wanted in (("v1.36", "endpointslices"), ("v1.20", "endpoints")):
        recorded = exchange(f"{version}/discovery/apis.json")
        assert recorded is not None
        async with ReplayServer([recorded]) as server, connected(server.url) as client:
            source = KubernetesSource(client=client, sink=Remembering(), node_name="node-a")
            assert (await source._choose_slices()).name == wanted


async def test_endpoints_have_their_own_name_in_logs() -> None:
    with capture_logs() as logs:
        async with ApiServer(cluster(), version=V1_20) as server, running(server) as (source, _):
            server.break_watches(Break.CUT)
            await until(lambda: all(state.failures for state in source.state()))
    assert {log["resource"] for log in logs if log["event"] == "watch broke"} == {"services", "endpoints"}


async def test_forbidden_api_groups_lead_to_slices() -> None:
    refused = exchanges("v1.36/startup/403-discovery.json")[0]
    async with ReplayServer([refused]) as server, connected(server.url) as client:
        source = KubernetesSource(client=client, sink=Remembering(), node_name="node-a")
        assert (await source._choose_slices()).name == "endpointslices"


# Many events


async def test_other_tasks_run_during_thousands_of_events() -> None:
    async with ApiServer(cluster(1)) as server, running(server) as (source, sink):
        server.keep_requests = False
        pauses: list[float] = []

        async def heartbeat() -> None:
            loop = asyncio.get_running_loop()
            last = loop.time()
            while True:
                await asyncio.sleep(0)
                pauses.append(loop.time() - last)
                last = loop.time()

        # Stopped in between, so that everything arrives in one burst.
        server.break_watches(Break.END)
        for number in range(1, 2001):
            server.cluster.put("services", service(number))
            server.cluster.put("endpointslices", endpoint_slice(number, ["10.0.0.1"]))
        beating = asyncio.ensure_future(heartbeat())
        await until(lambda: len(sink.services) == len(sink.slices) == 2001, within_s=60)
        beating.cancel()
        assert len(pauses) > 6
        assert all(state.lists == 1 for state in source.state())


async def test_the_source_is_in_step_after_random_changes_and_faults() -> None:
    random = Random(20)
    server = ApiServer(cluster(5), bookmark_s=0.02)
    await server.start()
    async with running(server) as (source, sink):
        for _ in range(120):
            match random.randrange(12):
                case 0:
                    server.break_watches(random.choice([how for how in Break if how is not Break.STALL]))
                case 1:
                    await server.stop()
                    await asyncio.sleep(random.uniform(0, 0.05))
                    await server.start()
                case 2:
                    server.cluster.expire()
                case 3:
                    server.inject(Fault(kind=random.choice(["drop", "reset", "cut"]), times=1))
                case 4:
                    server.inject(Fault(status=random.choice([401, 403, 410, 429, 500, 503, 504]), times=1))
                case 5:
                    await asyncio.sleep(random.uniform(0, 0.05))
                case number:
                    which = random.randrange(20)
                    if number % 2 and server.cluster.get("services", "demo", f"service-{which}"):
                        server.cluster.delete("services", "demo", f"service-{which}")
                    else:
                        server.cluster.put("services", service(which, ports=[random.randrange(1, 99)]))
        server.clear_faults()
        await until(lambda: equal(server, sink) and in_step(source), within_s=20)
        for name, found in sink.services.items():
            item = server.cluster.get("services", name.namespace, name.name)
            assert item is not None
            assert found.ports[0].port == item["spec"]["ports"][0]["port"]
        await server.stop()


# A real server


@pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="KUBECONFIG is not set: no real API server to ask")
async def test_a_real_server() -> None:
    """Only reads: the source equals a list, and its watches last."""
    from kubeproxy.kubernetes.client.client import Client
    from kubeproxy.kubernetes.client.credentials import ClientSettings

    client = await Client.connect(ClientSettings(kubeconfig=os.environ["KUBECONFIG"].split(":")[0], qps=0))
    try:
        async with watching(client, pace=replace(QUICK, watch_s=(2, 3), settle_s=0.5)) as (source, sink):
            await until(lambda: sink.complete and in_step(source), within_s=30)
            assert ServiceName("default", "kubernetes") in sink.services
            await until(lambda: all(state.watches >= 3 for state in source.state()), within_s=30)
            assert all(state.lists == 1 and not state.failures for state in source.state())
    finally:
        await client.close()


async def test_a_server_that_refused_is_asked_again_at_once_by_order() -> None:
    patient = replace(QUICK, retry_s=(1000.0, 1000.0))
    async with ApiServer() as server, connected(server.url) as client:
        server.cluster.put("services", service(0))
        server.cluster.put("endpointslices", endpoint_slice(0, ["10.0.0.1"]))
        server.inject(Fault(status=403, times=-1))
        async with watching(client, pace=patient) as (source, sink):
            await until(lambda: all(it.failures for it in source.state()))
            server.clear_faults()
            source.retry()
            await until(lambda: sink.complete)
