from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from multidict import CIMultiDictProxy
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import Family, FrontendName, ServicePortName
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.http.server import HttpServer, Listening
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.metrics.exposition import Exposition
from kubeproxy.observability.picture import Picture
from kubeproxy.observability.routes import health_routes, metrics_routes, rfc3339_nano
from tests.observability.conftest import Serving, State

WALL_NS = 1_800_000_000_500_000_000


class Node:
    """Both servers with their parts, and manual clocks."""

    def __init__(self, state: State) -> None:
        self.now = 1000.0
        self.serving = Serving()
        self.counters = self.serving.of
        self.health = ProxyHealth(timeout_s=60.0, families=Family)
        self.metrics = Metrics(families=Family)
        self.exposition = Exposition(self.metrics, data_plane=self.serving, picture=lambda: Picture(state.snapshot()))
        self.health_server = HttpServer(
            Listening(name="healthz", host="127.0.0.1", port=0, setting="healthzBindAddress"),
            health_routes(
                self.health,
                self.metrics,
                clock=lambda: self.now,
                wall_ns=lambda: WALL_NS + round((self.now - 1000) * 1e9),
            ),
        )
        self.metrics_server = HttpServer(
            Listening(name="metrics", host="127.0.0.1", port=0, setting="metricsBindAddress"),
            metrics_routes(self.exposition, self.metrics, lambda: {"BindAddress": "0.0.0.0", "FeatureGates": {}}),
        )

    async def healthz(self, path: str = "/healthz") -> tuple[int, CIMultiDictProxy[str], str]:
        return await fetch(self.health_server, path)

    async def page(self, path: str) -> tuple[int, CIMultiDictProxy[str], str]:
        return await fetch(self.metrics_server, path)


async def fetch(server: HttpServer, path: str) -> tuple[int, CIMultiDictProxy[str], str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}{path}") as answer:
        return answer.status, answer.headers, await answer.text()


@pytest.fixture
async def node(state: State) -> AsyncIterator[Node]:
    node = Node(state)
    await node.health_server.start()
    await node.metrics_server.start()
    yield node
    await node.health_server.close()
    await node.metrics_server.close()


async def test_before_the_first_sync_the_proxy_is_live_but_neither_healthy_nor_ready(node: Node) -> None:
    status, headers, body = await node.healthz()
    assert status == 503
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(body) == {
        "lastUpdated": "0001-01-01T00:00:00Z",
        "currentTime": "2027-01-15T08:00:00.5Z",
        "nodeEligible": True,
        "healthy": False,
        "status": {},
        "reasons": ["starting: the first sync is not complete"],
    }
    assert (await node.healthz("/livez"))[0] == 200
    status, headers, body = await node.healthz("/readyz")
    assert status == 503
    assert json.loads(body) == {
        "currentTime": "2027-01-15T08:00:00.5Z",
        "ready": False,
        "reasons": ["starting: the first sync is not complete"],
    }


async def test_after_the_first_sync_the_proxy_is_healthy_and_ready(node: Node) -> None:
    node.health.updated(999.0)
    status, _, body = await node.healthz()
    assert status == 200
    assert json.loads(body)["status"] == {
        "IPv4": {"lastUpdated": "2027-01-15T07:59:59.5Z", "healthy": True},
        "IPv6": {"lastUpdated": "2027-01-15T07:59:59.5Z", "healthy": True},
    }
    assert list(json.loads(body)) == ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"]
    status, _, body = await node.healthz("/livez")
    assert status == 200
    assert list(json.loads(body)) == ["lastUpdated", "currentTime", "healthy", "status"]
    status, _, body = await node.healthz("/readyz")
    assert (status, json.loads(body)["ready"]) == (200, True)


async def test_a_change_that_waits_for_too_long_is_unhealthy_with_a_reason(node: Node) -> None:
    node.health.updated(1000.0)
    node.health.queued(1010.0)
    node.health.failing("nft: table locked")
    node.now = 1070.0
    for path in ("/healthz", "/livez"):
        status, _, body = await node.healthz(path)
        answer = json.loads(body)
        assert status == 503
        assert answer["healthy"] is False
        assert answer["lastUpdated"] == "2027-01-15T08:00:00.5Z"
        assert answer["currentTime"] == "2027-01-15T08:01:10.5Z"
        assert answer["status"]["IPv4"] == {"lastUpdated": "2027-01-15T08:00:00.5Z", "healthy": False}
        assert [it.partition(":")[0] for it in answer["reasons"]] == ["sync", "late"]
        assert answer["reasons"][0] == "sync: nft: table locked"


async def test_a_node_under_deletion_is_unhealthy_but_live(node: Node) -> None:
    node.health.updated(1000.0)
    node.health.node_eligible(False)
    status, _, body = await node.healthz()
    assert (status, json.loads(body)["nodeEligible"], json.loads(body)["healthy"]) == (503, False, False)
    assert json.loads(body)["status"]["IPv4"]["healthy"] is True
    assert (await node.healthz("/livez"))[0] == 200


async def test_answers_are_counted(node: Node) -> None:
    node.health.updated(1000.0)
    await node.healthz("/healthz")
    await node.healthz("/livez")
    await node.healthz("/livez")
    node.health.node_eligible(False)
    await node.healthz("/healthz")
    _, _, text = await node.page("/metrics")
    lines = text.splitlines()
    assert 'kubeproxy_proxy_healthz_total{code="200"} 1.0' in lines
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1.0' in lines
    assert 'kubeproxy_proxy_livez_total{code="200"} 2.0' in lines
    assert 'kubeproxy_proxy_livez_total{code="503"} 0.0' in lines


async def test_the_root_lists_the_pages(node: Node) -> None:
    status, _, text = await node.healthz("/")
    assert (status, text) == (200, "/healthz\n/livez\n/readyz\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz/", "/healthz/x", "/%00", "/../etc/passwd"])
async def test_the_health_server_has_no_other_path(node: Node, path: str) -> None:
    assert (await node.healthz(path))[0] == 404


@pytest.mark.parametrize("path", ["/", "/livez", "/debug/pprof/", "/statusz"])
async def test_the_metrics_server_has_no_other_path(node: Node, path: str) -> None:
    assert (await node.page(path))[0] == 404


async def test_small_pages_of_the_metrics_server(node: Node) -> None:
    for path in ("/healthz", "/healthz/ping"):
        status, headers, body = await node.page(path)
        assert (status, body) == (200, "ok")
    status, headers, body = await node.page("/proxyMode")
    assert (status, body) == (200, "userspace")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    status, headers, body = await node.page("/configz")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {"kubeproxy.config.k8s.io": {"BindAddress": "0.0.0.0", "FeatureGates": {}}}


async def test_methods_that_write_are_refused(node: Node) -> None:
    async with aiohttp.ClientSession() as session:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with session.request(method, f"http://127.0.0.1:{node.health_server.port}/healthz") as answer:
                assert answer.status == 405


async def test_a_scrape_has_metrics_of_all_parts(node: Node) -> None:
    node.counters[FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)] = Counters(accepted=7)
    status, headers, text = await node.page("/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))
    assert {"kubeproxy_connections_accepted", "kubeproxy_sync_proxy_rules_duration_seconds"} <= set(families)
    assert "process_cpu_seconds" in families
    assert 'kubeproxy_connections_accepted_total{namespace="default",service="web",port="http"} 7' in text.splitlines()


async def test_concurrent_scrapes_are_equal(node: Node) -> None:
    node.counters.update(
        {FrontendName(ServicePortName("a", f"s{n}", ""), Family.IPV4): Counters(accepted=n) for n in range(3000)}
    )
    texts = await asyncio.gather(*(node.page("/metrics") for _ in range(5)))
    wanted = [line for line in texts[0][2].splitlines() if line.startswith("kubeproxy_connections")]
    assert len(wanted) == 1 + 6 * 2999
    for _, _, text in texts:
        assert [line for line in text.splitlines() if line.startswith("kubeproxy_connections")] == wanted


async def test_other_tasks_run_during_a_large_scrape(state: State) -> None:
    turns, writing = 0, False

    class Large(Serving):
        async def counters(self) -> Mapping[FrontendName, Counters]:
            nonlocal writing
            writing = True
            return await super().counters()

    serving = Large(
        {FrontendName(ServicePortName("a", f"s{n}", "p"), Family.IPV4): Counters(accepted=n + 1) for n in range(10_000)}
    )
    exposition = Exposition(Metrics(), data_plane=serving, picture=lambda: Picture(state.snapshot()))
    rendering = asyncio.create_task(exposition.render())
    while not rendering.done():
        turns += writing
        await asyncio.sleep(0)
    assert rendering.result().count(b"\n") > 90_000
    assert turns > 20


async def test_one_scrape_is_rendered_at_a_time(state: State) -> None:
    story: list[str] = []

    class Telling(Serving):
        async def counters(self) -> Mapping[FrontendName, Counters]:
            story.append("began")
            return {}

    exposition = Exposition(Metrics(), data_plane=Telling(), picture=lambda: Picture(state.snapshot()))

    async def scrape() -> None:
        await exposition.render()
        story.append("ended")

    await asyncio.gather(*(scrape() for _ in range(3)))
    assert story == ["began", "ended"] * 3


async def test_degraded_parts_are_shown_but_keep_the_node_healthy(node: Node) -> None:
    node.health.updated(1000.0)
    node.health.degraded(Reason.WORKERS, "worker 1 keeps dying")
    for path in ("/healthz", "/livez", "/readyz"):
        status, _, body = await node.healthz(path)
        assert status == 200
        assert json.loads(body)["reasons"] == ["workers: worker 1 keeps dying"]
    node.health.degraded(Reason.WORKERS, None)
    for path in ("/healthz", "/livez", "/readyz"):
        assert "reasons" not in json.loads((await node.healthz(path))[2])


async def test_service_level_indicators_count_checks_by_result(node: Node) -> None:
    await node.healthz("/readyz")
    node.health.updated(1000.0)
    for path in ("/healthz", "/livez", "/readyz"):
        await node.healthz(path)
    await node.page("/healthz")
    status, headers, text = await node.page("/metrics/slis")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = text.splitlines()
    assert "# TYPE kubernetes_healthcheck gauge" in lines
    assert "# TYPE kubernetes_healthchecks_total counter" in lines
    assert 'kubernetes_healthcheck{name="proxy",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthcheck{name="ping",type="healthz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="proxy",status="error",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="proxy",status="success",type="readyz"} 1.0' in lines
    assert 'kubernetes_healthchecks_total{name="proxy",status="success",type="livez"} 1.0' in lines


async def test_a_failed_data_plane_leaves_the_other_metrics(node: Node) -> None:
    node.counters[FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)] = Counters(accepted=7)
    node.serving.broken = "worker 1 gives no answer"
    with capture_logs() as logs:
        status, _, text = await node.page("/metrics")
        await node.page("/metrics")
    assert status == 200
    assert "kubeproxy_sync_proxy_rules_duration_seconds_count" in text
    assert "kubeproxy_connections" not in text
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [("warning", "worker 1 gives no answer")]
    node.serving.broken = None
    assert "kubeproxy_connections_accepted_total" in (await node.page("/metrics"))[2]


async def test_a_long_answer_is_compressed_if_accepted(node: Node) -> None:
    node.counters.update(
        {FrontendName(ServicePortName("a", f"s{n}", ""), Family.IPV4): Counters(accepted=n + 1) for n in range(1000)}
    )
    url = f"http://127.0.0.1:{node.metrics_server.port}/metrics"
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
            packed = await answer.read()
            assert answer.headers["Content-Encoding"] == "gzip"
        async with session.get(url, headers={"Accept-Encoding": "identity"}) as answer:
            plain = await answer.read()
            assert "Content-Encoding" not in answer.headers
    assert b'service="s999"' in plain
    assert b'service="s999"' in gzip.decompress(packed)
    assert len(packed) < len(plain) / 5


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (WALL_NS, "2027-01-15T08:00:00.5Z"),
        (1_800_000_000_000_000_000, "2027-01-15T08:00:00Z"),
        (1_800_000_000_000_000_001, "2027-01-15T08:00:00.000000001Z"),
        (1_800_000_000_120_000_000, "2027-01-15T08:00:00.12Z"),
        (0, "1970-01-01T00:00:00Z"),
    ],
)
def test_times_have_the_notation_of_go(unix_ns: int, text: str) -> None:
    assert rfc3339_nano(unix_ns) == text
