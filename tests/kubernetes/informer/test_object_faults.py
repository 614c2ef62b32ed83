"""The reflector against faulty API servers: it keeps its state, stays bounded and recovers soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client import credentials
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.client.decode import parse_event, parse_page
from kubeproxy.kubernetes.client.errors import CAUSES, GarbageError
from kubeproxy.kubernetes.client.status import MAX_RETRY_AFTER_S, retry_after, status_error
from kubeproxy.kubernetes.informer.list_watch_policy import ListWatchPolicy, Pace
from kubeproxy.kubernetes.invalid_field import MOST_FAULTS
from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.backoff import DecorrelatedJitter
from kubeproxy.runtime.time_slice import TimeSlice
from kubeproxy.sources.kubernetes.source import KubernetesSource
from tests.kubernetes.harness import QUICK, connected, kubeconfig, watching
from tests.sources.kubernetes.test_source import cluster, equal, in_step, running, state_of
from tests.support.apiserver import ApiServer, Break, Fault
from tests.support.apiserver.generate import service
from tests.support.loop_turns import counted_turns
from tests.support.waiting import until


def failed(source: KubernetesSource, cause: str) -> int:
    return state_of(source, "services").failures.get(cause, 0)


async def test_storage_restored_from_a_backup_is_noticed() -> None:
    """The server's versions are older than the known ones. It is silent on a watch from a future version."""
    async with ApiServer(cluster(), future_wait_s=0.05) as server, running(server) as (source, sink):
        backup = server.cluster.version
        server.cluster.put("services", service(8))
        server.cluster.delete("services", "demo", "service-0")
        await until(lambda: equal(server, sink))
        await server.stop()
        server.cluster.restore(backup)
        await server.start()
        await until(lambda: equal(server, sink) and in_step(source))
        assert len(sink.services) == 3
        assert failed(source, "ahead") == 1
        server.cluster.put("services", service(9))
        await until(lambda: equal(server, sink))


async def test_after_an_outage_one_small_request_replaces_the_list() -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        for number in range(3):
            await server.stop()
            server.cluster.put("services", service(20 + number))
            await server.start()
            await until(lambda: equal(server, sink) and in_step(source))
        assert server.counts["list services"] == server.counts["list endpointslices"] == 1
        assert server.counts["probe services"] >= 3


async def test_an_event_of_an_older_version_leads_to_a_new_list() -> None:
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        before = dict(sink.services)
        server.break_watches(Break.OLD_EVENT, "services")
        await until(lambda: state_of(source, "services").lists == 2 and in_step(source))
        assert sink.services == before
        assert state_of(source, "services").failures == {"back in time": 1}
        assert not [call for call in sink.calls if call.startswith(("put demo", "remove demo"))]


@pytest.mark.parametrize(("how", "cause"), [(Break.WRONG_KIND, "wrong kind"), (Break.DEEP, "garbage")])
async def test_garbage_events_lead_to_a_new_list(how: Break, cause: str) -> None:
    with capture_logs() as logs:
        async with ApiServer(cluster()) as server, running(server) as (source, sink):
            server.break_watches(how, "services")
            await until(lambda: state_of(source, "services").lists == 2 and in_step(source))
            assert equal(server, sink)
            assert state_of(source, "services").failures == {cause: 1}
    assert not [log for log in logs if "exc_info" in log]


async def test_a_list_of_another_kind_does_not_count_as_empty() -> None:
    pods = '{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"999"},"items":[]}'
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        server.inject(Fault(path="/api/v1/services", watch=False, status=200, body=pods, times=3))
        server.break_watches(Break.ERROR_410, "services")
        await until(lambda: failed(source, "wrong kind") == 3 and in_step(source))
        assert len(sink.services) == 3
        assert equal(server, sink)


@pytest.mark.parametrize("kind", ["pages", "endless"])
async def test_an_endless_list_is_aborted(kind: str) -> None:
    """A time limit ends it, or a bound on objects without a name. The known state stays."""
    async with ApiServer(cluster()) as server, running(server, pace=replace(QUICK, list_s=0.5)) as (source, sink):
        server.keep_requests = False
        server.inject(Fault(path="/api/v1/services", watch=False, kind=kind, times=-1))
        server.break_watches(Break.ERROR_410, "services")
        cause = "endless list" if kind == "endless" else "timeout"
        await until(lambda: failed(source, cause) >= 2)
        assert len(sink.services) == 3
        server.clear_faults()
        server.cluster.delete("services", "demo", "service-1")
        await until(lambda: equal(server, sink) and in_step(source))


async def test_repeated_410s_make_lists_rarer() -> None:
    """Every watch expires, so there are only lists. Each delay is longer than the previous one."""
    async with ApiServer(cluster()) as server, running(server) as (source, sink):
        server.inject(Fault(watch=True, status=410, times=-1))
        server.break_watches(Break.CUT)
        lists = server.counts["list services"]
        delays = [ListWatchPolicy(pace=Pace(), random=Random(seed)) for seed in range(50)]
        for _ in range(6):
            longest = max(course.watch_failed(status_error(Status(), code=410, seen="x")) for course in delays)
        assert 2.0 < longest <= 3.0
        await until(lambda: server.counts["list services"] > lists + 3)
        server.cluster.put("services", service(7))
        await until(lambda: equal(server, sink))
        server.clear_faults()
        await until(lambda: in_step(source))


async def test_watches_that_end_after_one_event_do_not_cause_a_hot_loop() -> None:
    pace = replace(QUICK, retry_s=(0.1, 0.5), settle_s=0.5)
    async with (
        ApiServer(cluster()) as server,
        connected(server.url) as client,
        watching(client, pace=pace) as (_, sink),
    ):
        await until(lambda: sink.complete and len(server.watches) == 2)
        before = server.counts["watch services"]
        end = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < end:
            turn = {"turn": str(server.cluster.version)}
            server.cluster.put("services", {**(it := service(5)), "metadata": {**it["metadata"], "annotations": turn}})
            server.break_watches(Break.END, "services")
            await asyncio.sleep(0.005)
        assert server.counts["watch services"] - before < 12


async def test_a_renewed_token_file_replaces_an_expired_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "FORCED_FILES_S", 0.02)
    token = tmp_path / "token"
    token.write_text("first")
    async with ApiServer(cluster(), tokens={"first"}) as server:
        settings = ClientSettings(kubeconfig=kubeconfig(tmp_path, server.url, {"tokenFile": str(token)}), qps=0)
        client = await Client.connect(settings)
        async with watching(client) as (source, sink):
            await until(lambda: in_step(source))
            server.tokens = {"second"}
            server.break_watches(Break.CUT)
            await until(lambda: failed(source, "unauthorized") >= 2)
            server.cluster.delete("services", "demo", "service-1")
            token.write_text("second")
            await until(lambda: equal(server, sink) and in_step(source))
            assert state_of(source, "services").lists == 1
        await client.close()


async def test_only_plugins_limit_forced_renewals(tmp_path: Path) -> None:
    user: dict[str, Any] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
    for given, pause_s in (({"token": "x"}, credentials.FORCED_FILES_S), (user, credentials.FORCED_PLUGIN_S)):
        path = kubeconfig(tmp_path, "http://127.0.0.1:1", given)
        reading = credentials.Access(ClientSettings(kubeconfig=path).read)
        if given is user:
            with pytest.raises(ConfigError, match="getting credentials"):
                await reading.configuration()
        else:
            await reading.configuration()
        assert reading.forced_renewal_s == pause_s


async def test_an_outage_after_the_first_list_counts_as_lost() -> None:
    with capture_logs() as logs:
        async with ApiServer(cluster()) as server, connected(server.url) as client:
            server.inject(Fault(watch=True, status=500, times=-1))
            async with watching(client) as (source, sink):
                await until(lambda: sink.complete and failed(source, "status 500") > 3)
                server.clear_faults()
                await until(lambda: in_step(source))
    events = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert events == ["API server lost, serving last state"]


def test_a_thousand_nodes_do_not_return_together() -> None:
    """All nodes lose the server at the same instant, for 30 seconds. After its return, less than a tenth of them
    return in any tenth of a second, and all within the longest delay."""
    pace, returns, drawn = Pace(), Counter[int](), Counter[float]()
    for seed in range(1000):
        backoff = DecorrelatedJitter(base_s=pace.retry_s[0], cap_s=pace.retry_s[1], random=Random(seed))
        at = 0.0
        while at < 30.0:
            at += (delay_s := backoff.next())
            drawn[round(delay_s, 1)] += 1
        returns[int((at - 30.0) * 10)] += 1
        assert at - 30.0 <= pace.retry_s[1]
    assert max(returns.values()) < 100
    assert len(returns) > 20
    assert max(drawn.values()) < 0.1 * drawn.total(), "no delay is common"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(
            (None, None),
            ("", None),
            ("3", 3.0),
            (" 3 ", 3.0),
            ("-3", None),
            ("²", None),
            ("soon", None),
            ("1e400", None),
        ),
        ("9" * 5000, 86_400.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
    ids=lambda value: str(value)[:20],
)
def test_retry_after_in_all_its_forms(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, 60.0) == seconds


def test_the_values_of_a_status_are_bounded() -> None:
    from kubeproxy.kubernetes.client.status import parse_status

    body = b'{"message":"%s","details":{"retryAfterSeconds":%s}}' % (b"x" * 100_000, b"9" * 400)
    error = status_error(parse_status(body), code=503, seen="answered")
    assert error.retry_after_s == MAX_RETRY_AFTER_S
    assert len(str(error)) < 1000
    for code in (0, -5, 200, 599, 600, 10**30):
        assert status_error(Status(), code=code, seen="x").cause in CAUSES


@pytest.mark.parametrize("version", ["", "7" * 129, "7\\n", "7\\u0000", "é"])
def test_versions_that_are_unsafe_in_a_url_are_garbage(version: str) -> None:
    with pytest.raises(GarbageError):
        parse_event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}' % version.encode())
    with pytest.raises(GarbageError):
        parse_page(b'{"kind":"ServiceList","metadata":{"resourceVersion":"%s"}}' % version.encode())


async def test_an_object_with_a_hundred_thousand_faults_is_logged_in_a_few_lines() -> None:
    broken = service(6)
    broken["spec"]["ports"] = [{"name": "x", "port": 0}] * 100_000
    with capture_logs() as logs:
        async with ApiServer(cluster()) as server, running(server) as (source, _):
            server.cluster.put("services", broken)
            await until(lambda: state_of(source, "services").faulty == 1)
    (found,) = [log for log in logs if log["event"] == "parts of object not served"]
    assert len(found["faults"]) == MOST_FAULTS + 1
    assert found["faults"][-1] == "object: and 99980 more faults"


async def test_other_tasks_run_during_a_flood_of_events() -> None:
    time_slice = TimeSlice(0.001)
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.05
    async with counted_turns() as turns:
        while loop.time() < end:
            await time_slice.offer()
    assert turns.count >= 10
