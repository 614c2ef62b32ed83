"""`/statusz` and `/trace` over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import ClientResponse

from kubeproxy.model import Destination
from kubeproxy.observability.http.server import HttpServer, Listening
from kubeproxy.observability.status import status_service
from kubeproxy.observability.status.document import RecentWarning, Status
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.routes import query_of, status_routes, wanted_format
from kubeproxy.observability.status.status_service import StatusService
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest
from tests.observability.status.observation import candidates, shop, town
from tests.support.loop_turns import counted_turns

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@dataclass
class StatusPages:
    """The status pages of a replaceable daemon."""

    see: Callable[[], Observation] = shop
    looks: int = 0
    traced: list[TraceRequest] = field(default_factory=list)
    recent_warnings: tuple[RecentWarning, ...] = ()
    base: str = ""
    session: aiohttp.ClientSession = field(init=False)
    status_service: StatusService = field(init=False)

    async def look(self) -> Observation:
        self.looks += 1
        return self.see()

    async def trace(self, traced: TraceRequest) -> TraceReport:
        self.traced.append(traced)
        return TraceReport(
            to="10.96.0.1:80",
            protocol="TCP",
            source="10.2.0.2",
            client="another host",
            hook="prerouting",
            outcome=Outcome.PASSED,
            reason="no Service has this address",
            steps=(),
            service=None,
            frontend=None,
            previews=(),
        )

    async def get(self, path: str, accept: str = "*/*", method: str = "GET") -> tuple[ClientResponse, str]:
        async with self.session.request(method, self.base + path, headers={"Accept": accept}) as answer:
            return answer, await answer.text()

    async def json(self, query: str = "") -> dict[str, Any]:
        answer, text = await self.get(f"/statusz?format=json{query}")
        assert answer.status == 200, text
        decoded: dict[str, Any] = msgspec.json.decode(text)
        msgspec.json.decode(text, type=Status)
        return decoded


@pytest.fixture
async def served() -> AsyncIterator[StatusPages]:
    made = StatusPages()
    made.status_service = StatusService(
        look=made.look, candidates=candidates, recent_warnings=lambda: made.recent_warnings
    )
    listening = Listening(name="metrics", host="127.0.0.1", port=0, setting="metricsBindAddress")
    server = HttpServer(listening, status_routes(made.status_service, made.trace))
    await server.start()
    made.base = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as made.session:
        yield made
    await server.close()


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/statusz", "*/*", "text/plain"),
        ("/statusz", BROWSER, "text/html"),
        ("/statusz", "application/json", "application/json"),
        ("/statusz", "text/plain", "text/plain"),
        ("/statusz?format=json", BROWSER, "application/json"),
        ("/statusz?format=text", BROWSER, "text/plain"),
        ("/statusz?format=html", "*/*", "text/html"),
        ("/statusz.json", "*/*", "application/json"),
        ("/statusz/page.css", "*/*", "text/css"),
        ("/statusz/page.js", "*/*", "text/javascript"),
        ("/trace?to=10.96.0.1:80", "*/*", "application/json"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_every_answer_is_read_only_and_carries_security_headers(
    served: StatusPages, path: str, accept: str, kind: str, method: str
) -> None:
    answer, text = await served.get(path, accept, method)
    assert answer.status == 200
    assert answer.content_type == kind
    assert bool(text) == (method == "GET")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/statusz", "/statusz.json", "/trace"])
async def test_methods_that_write_are_refused(served: StatusPages, path: str, method: str) -> None:
    assert (await served.get(path, method=method))[0].status == 405


@pytest.mark.parametrize(
    "path", ["/statusz/", "/statusz/page.html", "/statusz/../status.py", "/statusz/%2e%2e/status.py"]
)
async def test_other_paths_are_not_found(served: StatusPages, path: str) -> None:
    assert (await served.get(path))[0].status == 404


async def test_the_page_refers_to_no_other_host(served: StatusPages) -> None:
    for path in ("/statusz?format=html", "/statusz/page.css", "/statusz/page.js"):
        _, text = await served.get(path)
        assert "https://" not in text
        assert text.replace("http://www.w3.org/2000/svg", "").find("http://") == -1, path
        assert "innerHTML =" not in text


async def test_pages_and_filters(served: StatusPages) -> None:
    everything = await served.json()
    assert [it["name"] for it in everything["services"]] == ["broken", "web", "reports", "mail"]
    page = await served.json("&limit=2&offset=1&sort=name")
    assert [it["name"] for it in page["services"]] == ["reports", "mail"]
    assert (page["matched"], page["offset"]) == (4, 1)
    assert [it["name"] for it in (await served.json("&search=10.96.0.3"))["services"]] == ["reports"]
    assert [it["name"] for it in (await served.json("&state=ejected"))["services"]] == ["web"]
    assert [it["name"] for it in (await served.json("&service=shop/web:http"))["services"]] == ["web"]
    assert (await served.json("&limit=0"))["services"] == []
    assert (await served.json("&offset=9"))["services"] == []


async def test_one_service_as_text(served: StatusPages) -> None:
    answer, text = await served.get("/statusz?service=web")
    assert answer.status == 200
    assert text.startswith("shop/web: ejected")
    answer, text = await served.get("/statusz?service=nothing")
    assert (answer.status, text) == (404, "no Service nothing (of 4); `kubeproxy status` without a name lists all\n")


@pytest.mark.parametrize(
    "query", ["limit=-1", "limit=x", "offset=1e3", "limit=99999999999", "sort=age", "state=sad", "limit=٣"]
)
async def test_a_faulty_parameter_is_refused_with_the_allowed_values(served: StatusPages, query: str) -> None:
    answer, text = await served.get(f"/statusz?{query}")
    assert answer.status == 400
    assert "allowed" in text


async def test_a_trace(served: StatusPages) -> None:
    answer, text = await served.get("/trace?to=10.96.0.1:80&from=10.2.0.2&protocol=udp")
    assert answer.status == 200
    assert served.traced == [TraceRequest(Destination("10.96.0.1", "UDP", 80), "10.2.0.2")]  # type: ignore[arg-type]
    assert msgspec.json.decode(text, type=TraceReport).outcome is Outcome.PASSED
    answer, text = await served.get("/trace")
    assert (answer.status, text) == (400, 'found ""; allowed: IP:PORT, such as 10.96.0.10:53 or [fd00::1]:80\n')


async def test_other_tasks_run_while_thousands_of_services_are_sent(served: StatusPages) -> None:
    observation = town(3_000)
    served.see = lambda: observation
    async with counted_turns() as turns:
        whole = await served.json()
    assert len(whole["services"]) == whole["matched"] == 3_000
    assert whole["totals"]["by_state"]["ejected"] == 30
    assert [it["state"] for it in whole["services"][29:31]] == ["ejected", "ok"]
    assert turns.count > 30
    page = await served.json("&limit=50&offset=2990")
    assert len(page["services"]) == 10
    text = (await served.get("/statusz"))[1]
    assert "... and 2800 more" in text


async def test_an_observation_answers_several_queries_for_a_second(served: StatusPages) -> None:
    await asyncio.gather(*(served.json() for _ in range(5)))
    assert served.looks == 1
    now = 0.0
    service = StatusService(look=served.look, candidates=candidates, recent_warnings=lambda: (), clock=lambda: now)
    for moment, looks in ((0.0, 2), (0.8, 2), (0.9, 3), (1.7, 3), (60.0, 4)):
        now = moment
        await service.whole(query_of({}))
        assert served.looks == looks


async def test_samples_are_taken_only_while_queries_arrive(
    monkeypatch: pytest.MonkeyPatch, served: StatusPages
) -> None:
    monkeypatch.setattr(status_service, "SAMPLE_S", 0.001)
    now = 0.0
    service = StatusService(look=served.look, candidates=candidates, recent_warnings=lambda: (), clock=lambda: now)
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0.02)
    assert served.looks == 0
    await service.whole(query_of({}))
    async with asyncio.timeout(30):
        while served.looks < 5:
            await asyncio.sleep(0.001)
    now = status_service.KEEP_SAMPLING_S + 1
    async with asyncio.timeout(30):
        while True:
            before = served.looks
            await asyncio.sleep(0.02)
            if served.looks == before:
                break
    running.cancel()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("", "text"), ("*/*", "text"), (BROWSER, "html"), ("APPLICATION/JSON", "json"), ("text/plain, text/html", "text")],
)
def test_the_accept_header_chooses_the_format(accept: str, kind: str) -> None:
    assert wanted_format({}, {"Accept": accept}) == kind
    assert wanted_format({"format": "json"}, {"Accept": accept}) == "json"
    assert wanted_format({"format": "nonsense"}, {"Accept": accept}) == kind
