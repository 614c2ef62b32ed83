"""The test API server gives the recorded answers of real ones."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

import aiohttp
import pytest
from yarl import URL

from tests.support.apiserver import V1_20, V1_36, ApiServer, Break, Cluster, Version
from tests.support.apiserver.cluster import KINDS
from tests.support.apiserver.recordings import Exchange, exchange, exchanges, pages, stream

MATTER = {
    "Cache-Control",
    "Content-Encoding",
    "Content-Type",
    "Retry-After",
    "Transfer-Encoding",
    "Vary",
    "Warning",
    "X-Content-Type-Options",
}
TOKEN = "kube-proxy-token"
RESOURCES = {"slices": "endpointslices", "node": "nodes", "services": "services"}


def recorded(name: str) -> Exchange:
    found = exchange(name)
    assert found is not None
    return found


def resource_of(name: str) -> str:
    """The resource of a watch, from its file's name."""
    return next(resource for word, resource in RESOURCES.items() if word in name)


def seeded(version: Version, *, at: int | None = None) -> Cluster:
    """The recorded cluster, its objects at their own versions."""
    cluster = Cluster()
    for kind in KINDS.values():
        pattern = "node/list-own.json" if kind.resource == "nodes" else f"{kind.resource}/list-all.json"
        for one in exchanges(f"{version.name}/{pattern}"):
            for item in sorted(one.json["items"], key=lambda item: int(item["metadata"]["resourceVersion"])):
                cluster.put(kind.resource, item, version=int(item["metadata"]["resourceVersion"]))
            cluster.version = int(one.json["metadata"]["resourceVersion"])
    cluster.version = at or cluster.version
    return cluster


def _url(server: ApiServer, path: str) -> URL:
    return URL(server.url + path, encoded=True)


async def ask(server: ApiServer, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
    sent = {"Accept": "application/json", "Accept-Encoding": headers.get("Accept-Encoding", "identity")}
    if authorization := headers.get("Authorization"):
        sent["Authorization"] = re.sub("<(?!bad).* token>", TOKEN, authorization)
    async with aiohttp.ClientSession(headers=sent) as session, session.get(_url(server, path)) as response:
        return response.status, response.headers, await response.read()


def same_headers(ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """The headers that matter to a client are equal."""
    assert {name: ours[name] for name in MATTER if name in ours} == {
        name: theirs[name] for name in MATTER if name in theirs
    }


@pytest.mark.parametrize(
    ("version", "name", "at"),
    [
        (V1_36, "v1.36/services/list-all.json", 309),
        (V1_36, "v1.36/services/list-selector.json", 309),
        (V1_36, "v1.36/services/list-rv0.json", 309),
        (V1_36, "v1.36/endpointslices/list-all.json", 310),
        (V1_36, "v1.36/endpointslices/list-selector.json", 312),
        (V1_36, "v1.36/endpoints/list-all.json", 312),
        (V1_36, "v1.36/endpoints/list-selector.json", 312),
        (V1_20, "v1.20/services/list-all.json", 273),
        (V1_20, "v1.20/services/list-selector.json", 273),
        (V1_20, "v1.20/endpoints/list-all.json", 273),
    ],
)
async def test_lists_equal_recorded_ones(version: Version, name: str, at: int) -> None:
    theirs = recorded(name)
    async with ApiServer(seeded(version, at=at), version=version, tokens={TOKEN}) as server:
        status, headers, body = await ask(server, theirs.path, theirs.request_headers)
    assert status == theirs.status
    same_headers(headers, theirs.headers)
    assert json.loads(body)["items"] == theirs.json["items"]
    assert {k: v for k, v in json.loads(body).items() if k not in ("items", "metadata")} == {
        k: v for k, v in theirs.json.items() if k not in ("items", "metadata")
    }
    assert json.loads(body)["metadata"] == theirs.json["metadata"]


@pytest.mark.parametrize(
    ("version", "name", "at"),
    [
        (V1_36, "v1.36/node/list-own.json", 312),
        (V1_36, "v1.36/node/list-empty.json", 208),
        (V1_20, "v1.20/node/list-own.json", 273),
    ],
)
async def test_lists_of_one_node_equal_recorded_ones(version: Version, name: str, at: int) -> None:
    theirs = recorded(name)
    cluster = seeded(version)
    cluster.version = at
    async with ApiServer(cluster, version=version, tokens={TOKEN}) as server:
        status, headers, body = await ask(server, theirs.path, theirs.request_headers)
    assert status == theirs.status
    assert headers["Content-Type"] == theirs.headers["Content-Type"]
    assert json.loads(body) == theirs.json


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (V1_36, "v1.36/services/list-limit2-pages.json"),
        (V1_36, "v1.36/services/list-limit10-selector-pages.json"),
        (V1_36, "v1.36/services/list-limit2-rv0.json"),
        (V1_20, "v1.20/services/list-limit5-pages.json"),
    ],
)
async def test_pages_equal_recorded_ones_with_tokens(version: Version, name: str) -> None:
    theirs = pages(name)
    at = int(theirs[0].json["metadata"]["resourceVersion"])
    cluster = seeded(version)
    cluster.version = max(cluster.version, at)
    async with ApiServer(cluster, version=version, tokens={TOKEN}) as server:
        if "rv0" not in name:
            cluster.version = at
        for page in theirs:
            status, headers, body = await ask(server, page.path, page.request_headers)
            assert status == page.status
            assert json.loads(body) == page.json
            assert headers["Content-Type"] == page.headers["Content-Type"]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (version, f"{version.name}/errors/{name}.json")
        for version, names in (
            (
                V1_36,
                [
                    "400-bad-field-selector",
                    "400-bad-limit",
                    "400-bad-resource-version",
                    "401-bad-token",
                    "401-bad-token-watch",
                    "403-anonymous",
                    "404-discovery-v1beta1-list",
                    "404-discovery-v1beta1-watch",
                    "404-unknown-path",
                    "404-unknown-resource",
                    "410-list-exact-compacted",
                    "410-list-old-rv-with-limit",
                    "410-expired-continue",
                    "500-bad-resource-version-watch",
                    "504-list-future-rv",
                ],
            ),
            (
                V1_20,
                [
                    "401-bad-token",
                    "403-anonymous",
                    "404-discovery-v1-list",
                    "404-discovery-v1-watch",
                    "404-unknown-path",
                    "410-expired-continue",
                    "410-list-exact-compacted",
                    "500-bad-resource-version",
                    "500-bad-resource-version-watch",
                    "504-list-future-rv",
                ],
            ),
        )
        for name in names
    ],
)
async def test_refusals_equal_recorded_ones(version: Version, name: str) -> None:
    theirs = recorded(name)
    cluster = seeded(version, at=700)
    cluster.expire()
    if "future" in name:
        message = str(theirs.json["message"])
        cluster.version = int(message.rsplit(" ", 1)[1])
    async with ApiServer(cluster, version=version, tokens={TOKEN}, future_wait_s=0.01) as server:
        status, headers, body = await ask(server, theirs.path, theirs.request_headers)
    assert status == theirs.status
    same_headers(headers, theirs.headers)
    assert body == theirs.body or json.loads(body) == theirs.json


@pytest.mark.parametrize(
    "name", ["403-list-services", "403-list-endpointslices", "403-watch-services", "403-discovery"]
)
async def test_before_its_rules_are_loaded_a_server_forbids_everything(name: str) -> None:
    theirs = recorded(f"v1.36/startup/{name}.json")
    async with ApiServer(seeded(V1_36), tokens={TOKEN}) as server:
        server.forbidden = True
        status, headers, body = await ask(server, theirs.path, theirs.request_headers)
    assert status == theirs.status
    same_headers(headers, theirs.headers)
    assert json.loads(body) == theirs.json


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=lambda version: version.name)
async def test_discovery_equals_the_recorded_one(version: Version) -> None:
    async with ApiServer(seeded(version), version=version) as server:
        for theirs in exchanges(f"{version.name}/discovery/*"):
            status, headers, body = await ask(server, theirs.path, theirs.request_headers)
            if theirs.path == "/apis":
                wanted = {group["name"]: group for group in theirs.json["groups"]}
                for group in json.loads(body)["groups"]:
                    assert group["versions"] == wanted[group["name"]]["versions"]
                assert json.loads(body).keys() == theirs.json.keys()
            elif theirs.path == "/apis/discovery.k8s.io/v1" and status == 200:
                ours, real = json.loads(body)["resources"][0], theirs.json["resources"][0]
                assert ours == {key: value for key, value in real.items() if key != "storageVersionHash"}
            elif theirs.path == "/api":
                assert json.loads(body)["versions"] == theirs.json["versions"]
            elif "resources" in theirs.json and status == 200:
                assert json.loads(body)["groupVersion"] == theirs.json["groupVersion"]
            elif status == 200 or theirs.status != 200:
                assert json.loads(body) == theirs.json
            assert status == theirs.status or "v1beta1" in theirs.path
            assert headers["Content-Type"] == theirs.headers["Content-Type"]


@pytest.mark.parametrize(
    "name", ["v1.36/watch/services.ndjson", "v1.36/watch/endpointslices.ndjson", "v1.36/watch/own-node.ndjson"]
)
async def test_a_watch_sends_the_recorded_events(name: str) -> None:
    theirs = stream(name)
    resource = resource_of(name)
    cluster = seeded(V1_36, at=329)
    wanted = [json.loads(line) for line in theirs.lines]
    for event in wanted:
        item, at = event["object"], int(event["object"]["metadata"]["resourceVersion"])
        if event["type"] in ("ADDED", "MODIFIED"):
            cluster.put(resource, item, version=at)
        elif event["type"] == "DELETED":
            cluster.version = at - 1
            if "labels" in item["metadata"] or resource == "services":
                cluster.delete(resource, item["metadata"].get("namespace", ""), item["metadata"]["name"])
    path = theirs.path.replace("timeoutSeconds=150", "timeoutSeconds=1")
    async with ApiServer(cluster) as server:
        status, headers, body = await ask(server, path, {})
    assert status == 200
    same_headers(headers, theirs.headers)
    ours = [json.loads(line) for line in body.splitlines()]
    assert ours == [event for event in wanted if event["type"] != "BOOKMARK"]
    # Not only equal values: the same bytes, up to the object's own fields.
    assert [line[:60] for line in body.splitlines()] == [
        line[:60] for line in theirs.lines if not line.startswith(b'{"type":"BOOKMARK"')
    ]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (V1_36, "v1.36/watch/services-timeout-10s-one-event.ndjson"),
        (V1_36, "v1.36/watch/endpointslices.ndjson"),
        (V1_36, "v1.36/watch/own-node.ndjson"),
        (V1_20, "v1.20/watch/services.ndjson"),
        (V1_20, "v1.20/watch/own-node.ndjson"),
    ],
)
async def test_bookmarks_equal_recorded_ones(version: Version, name: str) -> None:
    theirs = next(json.loads(line) for line in stream(name).lines if b'"BOOKMARK"' in line)
    resource = resource_of(name)
    kind = KINDS[resource]
    cluster = seeded(version, at=400)
    at = int(theirs["object"]["metadata"]["resourceVersion"])
    async with ApiServer(cluster, version=version, bookmark_s=0.05) as server:
        path = f"{kind.path}?watch=true&resourceVersion={at - 1}&timeoutSeconds=3&allowWatchBookmarks=true"
        cluster.version = at - 1
        cluster.put(resource, {"metadata": {"name": "new", "namespace": "demo"}}, version=at)
        async with aiohttp.ClientSession() as session, session.get(_url(server, path)) as response:
            lines = [json.loads(await response.content.readline()) for _ in range(2)]
    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK"]
    assert lines[1] == theirs


async def test_a_quiet_watch_gets_no_bookmark_and_a_clean_end() -> None:
    async with ApiServer(seeded(V1_36), bookmark_s=0.05) as server:
        version = server.cluster.version
        path = f"/api/v1/services?watch=true&resourceVersion={version}&timeoutSeconds=1&allowWatchBookmarks=true"
        _, _, body = await ask(server, path, {})
    assert body == stream("v1.36/watch/services-timeout-5s.ndjson").body == b""


async def test_an_expired_version_gives_an_error_event_and_ends_the_stream() -> None:
    theirs = stream("v1.36/watch/services-410-compacted.ndjson")
    cluster = seeded(V1_36, at=605)
    cluster.restart()
    async with ApiServer(cluster) as server:
        async with asyncio.timeout(2):
            _, _, body = await ask(server, theirs.path, {})
    assert body == theirs.body


async def test_an_expired_version_leaves_an_old_server_s_stream_open() -> None:
    theirs = stream("v1.20/watch/services-410.ndjson")
    cluster = seeded(V1_20, at=324)
    cluster.restart()
    async with ApiServer(cluster, version=V1_20) as server:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        path = theirs.path.replace("timeoutSeconds=5", "timeoutSeconds=1")
        _, _, body = await ask(server, path, {})
        assert loop.time() - begun > 0.9
    assert body == theirs.body


async def test_a_continue_token_outlives_a_compaction_only_on_a_new_server() -> None:
    for version, survives in ((V1_36, True), (V1_20, False)):
        cluster = seeded(version)
        async with ApiServer(cluster, version=version) as server:
            _, _, body = await ask(server, "/api/v1/services?limit=3", {})
            token = json.loads(body)["metadata"]["continue"]
            cluster.version += 1
            cluster.compact()
            status, _, _ = await ask(server, f"/api/v1/services?limit=3&continue={token}", {})
            assert (status == 200) is survives
            cluster.restart()
            status, _, body = await ask(server, f"/api/v1/services?limit=3&continue={token}", {})
            assert status == 410
            # The token in the answer continues from the same key at the newest version.
            inconsistent = json.loads(body)["metadata"]["continue"]
            status, _, body = await ask(server, f"/api/v1/services?limit=3&continue={inconsistent}", {})
            assert status == 200
            assert json.loads(body)["metadata"]["resourceVersion"] == str(cluster.version)


async def test_long_lists_are_compressed_on_request() -> None:
    theirs = recorded("v1.36/endpointslices/list-1000-endpoints.json.gz")
    cluster = Cluster()
    for item in theirs.json["items"]:
        cluster.put("endpointslices", item, version=int(item["metadata"]["resourceVersion"]))
    path = "/apis/discovery.k8s.io/v1/endpointslices"
    async with ApiServer(cluster) as server:
        _, headers, body = await ask(server, path, {"Accept-Encoding": "gzip"})
        assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
        assert json.loads(body)["items"] == theirs.json["items"]
        _, headers, _ = await ask(server, path, {})
        assert "Content-Encoding" not in headers


async def test_a_killed_server_cuts_its_watches() -> None:
    server = ApiServer(seeded(V1_36))
    await server.start()
    path = f"/api/v1/services?watch=true&resourceVersion={server.cluster.version}&timeoutSeconds=30"
    asking = asyncio.ensure_future(ask(server, path, {}))
    while not server.watches:
        await asyncio.sleep(0.01)
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await asking
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(server, "/api", {})
    await server.start()
    assert (await ask(server, "/api", {}))[0] == 200
    await server.stop()


async def test_watches_break_as_requested() -> None:
    async with ApiServer(seeded(V1_36)) as server:
        for how, fails in ((Break.END, False), (Break.CUT, True), (Break.RESET, True), (Break.HALF_LINE, True)):
            path = f"/api/v1/services?watch=true&resourceVersion={server.cluster.version}&timeoutSeconds=30"
            asking = asyncio.ensure_future(ask(server, path, {}))
            while not server.watches:
                await asyncio.sleep(0.01)
            assert server.break_watches(how) == 1
            if fails:
                with pytest.raises(aiohttp.ClientError):
                    await asking
            else:
                assert (await asking)[2] == b""
            while server.watches:
                await asyncio.sleep(0.01)
