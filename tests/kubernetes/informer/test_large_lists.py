"""Lists larger than memory may hold. The passing data is not bounded, the kept data is, and one namespace does not
affect the others."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from kubeproxy.kubernetes.client import list_stream
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import GarbageError, UnreachableError
from kubeproxy.kubernetes.client.transport import PIECE_BYTES
from kubeproxy.kubernetes.informer import memory_bound
from kubeproxy.model import ServiceName
from kubeproxy.sources.kubernetes.source import LEFT_OUT
from tests.kubernetes.harness import QUICK, connected
from tests.sources.kubernetes.test_source import in_step, running, state_of
from tests.support.apiserver import ApiServer, Break, Cluster, Fault
from tests.support.apiserver.generate import endpoint_slice, fill, service
from tests.support.waiting import until
from tests.support.web_server import web_server

REFILL = replace(QUICK, refill_s=1.0)


def heavy(number: int, kib: int, *, namespace: str = "greedy") -> dict[str, Any]:
    """A Service with annotations of so many KiB."""
    item = service(number, namespace=namespace)
    item["metadata"]["annotations"] = {"note": "x" * (kib << 10)}
    return item


def heavy_cluster(number: int, kib: int) -> Cluster:
    cluster = Cluster(version=100)
    for index in range(number):
        cluster.put("services", heavy(index, kib))
    cluster.put("services", service(9999, namespace="victim"))
    return cluster


VICTIM = ServiceName("victim", "service-9999")


async def test_finding_2_260_services_of_256_kib_are_listed() -> None:
    """The list comes in one piece, as from a server's cache: 65 MiB."""
    async with ApiServer(heavy_cluster(260, 256)) as server, running(server) as (source, sink):
        assert len(sink.services) == 261
        assert VICTIM in sink.services
        assert state_of(source, "services").failures == {}
        assert server.counts["list services"] == 1
        # The same again, on a running node.
        server.cluster.expire()
        server.break_watches(Break.ERROR_410)
        await until(lambda: state_of(source, "services").lists == 2 and in_step(source))
        assert len(sink.services) == 261
        assert state_of(source, "services").left_out == 0
        assert state_of(source, "services").kept_bytes < 300_000


async def test_what_is_in_memory_of_a_page_is_a_piece_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    feed = list_stream.ListSplitter.feed

    def watched(self: list_stream.ListSplitter, data: bytes) -> Any:
        nonlocal longest
        assert len(data) <= PIECE_BYTES
        page = feed(self, data)
        longest = max(longest, len(self._rest))
        return page

    monkeypatch.setattr(list_stream.ListSplitter, "feed", watched)
    async with ApiServer(heavy_cluster(100, 256)) as server, running(server) as (_, sink):
        assert len(sink.services) == 101
    assert longest < list_stream.PIECE_BYTES + 2 * PIECE_BYTES


@pytest.mark.parametrize("by", ["list", "watch"])
async def test_an_object_as_long_as_a_tenant_can_make_it(by: str) -> None:
    """A request of 3 MiB, each byte six in JSON."""
    item = heavy(1, 0)
    item["metadata"]["annotations"] = {"note": "\x01" * (3 << 20)}
    cluster = Cluster(version=100)
    cluster.put("services", service(9999, namespace="victim"))
    if by == "list":
        cluster.put("services", item)
    async with ApiServer(cluster) as server, running(server) as (source, sink):
        if by == "watch":
            server.cluster.put("services", item)
        await until(lambda: len(sink.services) == 2 and in_step(source))
        assert state_of(source, "services").failures == {}


async def test_a_namespace_that_fills_what_is_kept_leaves_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a start, at a new list, and by a watch. The objects left out return when there is room."""
    monkeypatch.setattr(memory_bound, "MAX_KEPT_BYTES", 40_000)
    cluster = Cluster(version=100)
    for index in range(100):
        cluster.put("services", service(index, namespace="a-greedy"))
    for index in range(200, 203):
        cluster.put("services", service(index, namespace="victim"))
    with capture_logs() as logs:
        async with ApiServer(cluster) as server, running(server, pace=REFILL) as (source, sink):
            assert of(sink.services, "victim") == {"service-200", "service-201", "service-202"}
            kept = of(sink.services, "a-greedy")
            assert 20 < len(kept) < 60
            assert state_of(source, "services").left_out == 100 - len(kept)
            assert source.complaint() == LEFT_OUT
            # Objects of the victim come and change; the other namespace's new ones are left out, and the known ones
            # stay.
            server.cluster.put("services", service(203, namespace="victim"))
            server.cluster.put("services", service(101, namespace="a-greedy"))
            await until(lambda: "service-203" in of(sink.services, "victim"))
            await until(lambda: state_of(source, "services").left_out == 101 - len(kept))
            assert of(sink.services, "a-greedy") == kept
            # A new list puts the known objects before new ones that come first in it.
            server.cluster.put("services", service(0, namespace="a-greedy", ports=[81]))
            server.cluster.expire()
            server.break_watches(Break.ERROR_410)
            await until(lambda: state_of(source, "services").lists == 2 and in_step(source))
            assert of(sink.services, "a-greedy") == kept
            assert len(of(sink.services, "victim")) == 4
            # There is room again: a list of its own brings the objects that were left out.
            for index in range(75):
                server.cluster.delete("services", "a-greedy", f"service-{index}")
                await asyncio.sleep(0)
            await until(lambda: len(of(sink.services, "a-greedy")) == 26)
            await until(lambda: source.complaint() is None and in_step(source))
    errors = [log for log in logs if log["event"] == "objects left out; too many to keep"]
    assert len(errors) == 1
    assert (errors[0]["log_level"], errors[0]["largest_namespace"]) == ("error", "a-greedy")
    assert [log["event"] for log in logs].count("all objects are kept again") == 1


def of(names: Any, namespace: str) -> set[str]:
    return {name.name for name in names if name.namespace == namespace}


async def test_100_000_endpoints_of_one_tenant() -> None:
    """A thousand slices of a hundred endpoints fit, and so do later slices of another namespace."""
    cluster = Cluster(version=100)
    for index in range(1000):
        addresses = [f"10.{64 + (index >> 8)}.{index & 255}.{host}" for host in range(1, 101)]
        cluster.put("endpointslices", endpoint_slice(1, addresses, namespace="greedy", suffix=str(index)))
    fill(cluster, services=3, endpoints_each=2)
    async with ApiServer(cluster) as server, running(server) as (source, sink):
        assert sum(len(found.endpoints) for found in sink.slices.values()) == 100_006
        state = state_of(source, "endpointslices")
        assert (state.left_out, state.kept_bytes < memory_bound.MAX_KEPT_BYTES // 7) == (0, True)
        server.cluster.expire()
        server.break_watches(Break.ERROR_410)
        await until(lambda: state_of(source, "endpointslices").lists == 2 and in_step(source))
        assert len(sink.slices) == 1003


# Answers that begin and do not end


async def test_an_answer_cut_twice_is_asked_for_in_pages_that_shrink() -> None:
    async with ApiServer(heavy_cluster(10, 1)) as server:
        server.inject(Fault(kind="cut", path="/api/v1/services", watch=False, times=5))
        async with running(server, pace=replace(QUICK, page=8)) as (source, sink):
            assert len(sink.services) == 11
            limits = [
                (request.query.get("resourceVersion"), request.query.get("limit"))
                for request in server.requests
                if request.path == "/api/v1/services" and "watch" not in request.query
            ]
            assert limits == [("0", "8")] * 2 + [(None, "8"), (None, "4"), (None, "2")] + [(None, "1")] * 11
            # The next pages grow again, until one request covers the whole cache.
            for lists, limit in ((2, "2"), (3, "4"), (4, "8"), (5, None)):
                server.cluster.expire()
                server.break_watches(Break.ERROR_410, "services")
                await until(lambda: state_of(source, "services").lists == lists and in_step(source))  # noqa: B023
                asked = [
                    request.query
                    for request in server.requests
                    if request.path == "/api/v1/services" and "watch" not in request.query
                ]
                assert asked[-1].get("limit") == limit


# Compressed answers


async def answered(body: bytes, encoding: str) -> tuple[int, bytes]:
    """Send an answer with this body; the longest piece, and all of them."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": "application/json", "Content-Encoding": encoding})

    async with web_server(handle) as server, connected(server.url) as client:
        return await pieces_of(client)


async def pieces_of(client: Client) -> tuple[int, bytes]:
    found = []
    async with client.pieces("/", {}) as pieces:
        async for piece in pieces:
            found.append(piece)
    return max(map(len, found)), b"".join(found)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES, 64 << 20])
async def test_what_is_unpacked_at_once_is_bounded(size: int) -> None:
    text = b"a" * size + b"!"
    longest, whole = await answered(gzip.compress(text, 1), "gzip")
    assert longest <= PIECE_BYTES
    assert whole == text


async def test_two_members_are_one_body() -> None:
    assert (await answered(gzip.compress(b"one ") + gzip.compress(b"two"), "gzip"))[1] == b"one two"


@pytest.mark.parametrize(
    ("body", "encoding", "error"),
    [
        (gzip.compress(b"a" * 1000)[:-9], "gzip", UnreachableError),
        (b"not packed", "gzip", GarbageError),
        (b"{}", "br", GarbageError),
    ],
    ids=["cut", "no gzip", "another encoding"],
)
async def test_what_cannot_be_unpacked_is_an_error(body: bytes, encoding: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await answered(body, encoding)


async def test_the_double_packs_its_lists() -> None:
    """Otherwise the tests above would have no packed list."""
    async with ApiServer(heavy_cluster(3, 256)) as server, aiohttp.ClientSession(auto_decompress=False) as session:
        response = await session.get(f"{server.url}/api/v1/services", headers={"Accept-Encoding": "gzip"})
        assert response.headers["Content-Encoding"] == "gzip"
        assert len(await response.read()) < 10_000
