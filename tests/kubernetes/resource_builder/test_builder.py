"""Queries: what contradicts itself, what is asked of the server, what is read from paths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeproxy.kubernetes.client.command_client import RestClient
from kubeproxy.kubernetes.client.errors import Expired
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.status import StatusError
from kubeproxy.kubernetes.resource_builder.builder import Builder
from kubeproxy.kubernetes.resource_builder.discovery import DiscoveryCache
from kubeproxy.kubernetes.resource_builder.errors import Errors
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.model.errors import ConfigError
from tests.commands.create.conftest import config_map
from tests.commands.create.server import WriteServer


@pytest.fixture(params=[True, False], ids=["aggregated", "legacy"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[WriteServer]:
    async with WriteServer(modern=request.param) as found:
        for number in range(5):
            metadata = {"name": f"c{number}", "namespace": "default", "labels": {"odd": str(number % 2)}}
            found.objects[f"/api/v1/namespaces/default/configmaps/c{number}"] = {"metadata": metadata}
        found.objects["/apis/apps/v1/namespaces/default/deployments/d"] = {"metadata": {"name": "d"}}
        yield found


@pytest.fixture
async def builder(server: WriteServer) -> AsyncIterator[Builder]:
    async with RestClient(ClientConfig(host=server.url, token="good")) as client:
        yield Builder(client, Mapper(client, None)).namespace("default").continue_on_error()


async def names(builder: Builder) -> list[str]:
    return [found.label for found in await builder.done().objects()]


async def test_types_and_names(builder: Builder) -> None:
    assert await names(builder.types_or_names("cm,deploy", "c1", "c2")) == [
        *("configmap/c1", "configmap/c2", "deployment.apps/c1", "deployment.apps/c2"),
    ]


async def test_tuples(builder: Builder) -> None:
    assert await names(builder.types_or_names("ConfigMap/c1", "deployments.v1.apps/d")) == [
        *("configmap/c1", "deployment.apps/d"),
    ]


async def test_all_of_a_type_page_by_page_and_by_selector(builder: Builder, server: WriteServer) -> None:
    found = await builder.types("configmaps").label_selector("odd=1").done().objects()
    assert [each.name for each in found] == ["c1", "c3"]
    assert {each.api_version for each in found} == {"v1"}
    everything = await names(Builder(builder._client, builder._mapper).types("cm").select_all().namespace("default"))
    assert everything == [f"configmap/c{number}" for number in range(5)]
    assert sum("continue=" in path for _, path in server.requests) == 2


async def test_a_category_is_all_of_its_types(builder: Builder) -> None:
    assert await names(builder.types_or_names("all", allow_empty_selector=True)) == ["deployment.apps/d"]


async def test_what_has_to_be_there_is_asked_for(builder: Builder) -> None:
    with pytest.raises(StatusError, match='configmaps "gone" not found'):
        await names(builder.types_or_names("cm", "gone", "c1").require_object())


async def test_every_error_is_kept(builder: Builder) -> None:
    with pytest.raises(Errors) as raised:
        await names(builder.types_or_names("cm", "gone", "c1", "away").require_object())
    assert [str(error) for error in raised.value.errors] == [
        *('configmaps "gone" not found', 'configmaps "away" not found'),
    ]


async def test_an_unknown_type_is_reported(builder: Builder) -> None:
    with pytest.raises(ConfigError, match='the server doesn\'t have a resource type "nope"'):
        await names(builder.types_or_names("nope", "x"))


async def test_a_single_type_is_kept(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="you may only specify a single resource type"):
        await names(builder.types_or_names("cm,deploy", "c1").single_type())


async def test_the_latest_is_what_the_server_has(builder: Builder, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("c1"))
    found = await builder.filenames([str(path)]).latest().done().object()
    assert found.labels == {"odd": "1"}
    assert found.position.source == str(path)


async def test_a_single_object_is_demanded(builder: Builder) -> None:
    with pytest.raises(ConfigError, match="found 2 objects; allowed: exactly one"):
        await builder.types_or_names("cm", "c1", "c2").done().object()


async def test_objects_of_paths_get_their_namespace(builder: Builder, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("a") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, namespace: x}\n")
    first, second = await builder.filenames([str(path)]).done().objects()
    assert (first.namespace, second.namespace) == ("default", "")


async def test_one_document_is_visited_before_the_next_is_read(builder: Builder, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("a") + "---\nkind: [\n" + config_map("b"))
    seen: list[str] = []

    async def visit(found: ResourceObject) -> None:
        seen.append(found.name)

    result = builder.filenames([str(path)]).done()
    with pytest.raises(ConfigError, match="error parsing"):
        await result.visit(visit)
    assert seen == ["a", "b"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"filenames": ["x"], "types": ["cm"]}, "you may not specify resource arguments as well"),
        ({"filenames": ["x"], "names": ["n"]}, "name cannot be provided when a path is specified"),
        ({"types": ["cm"], "names": ["n"], "selector": "a=b"}, "name cannot be provided when a selector is specified"),
        ({"selector": "a=b"}, "at least one resource must be specified to use a selector"),
        ({"types": ["cm"]}, "resource(s) were provided, but no name was specified"),
        ({"arguments": ["a/b/c"]}, "arguments in resource/name form may not have more than one slash"),
        ({"arguments": ["a/b", "c"]}, "there is no need to specify a resource type as a separate argument"),
        ({"arguments": ["a/"]}, "must have a single resource and name"),
        ({"types": ["cm"], "names": ["n"], "everywhere": True}, "cannot be retrieved by name across all namespaces"),
        ({}, "You must provide one or more resources by argument or filename"),
        ({"types": ["cm"], "selector": "a in"}, "the provided selector"),
    ],
)
def test_contradictions_are_reported_before_any_request(
    steps: dict[str, list[str]], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("")
    builder = Builder(None, None)
    builder.filenames([str(tmp_path / name) for name in steps.get("filenames", [])])
    builder.types(*steps.get("types", [])).names(*steps.get("names", []))
    builder.types_or_names(*steps.get("arguments", [])).label_selector(str(steps.get("selector", "")))
    if steps.get("everywhere"):
        builder.all_namespaces()
    with pytest.raises(ConfigError) as raised:
        builder.done()
    assert expected in str(raised.value)


async def test_without_a_server_objects_are_only_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("a"))
    found = await Builder(None, None).local().filenames([str(path)]).namespace("n").done().object()
    assert (found.namespace, found.mapping) == ("n", None)


async def test_the_cache_is_left_alone_when_it_is_broken(server: WriteServer, tmp_path: Path) -> None:
    async with RestClient(ClientConfig(host=server.url, token="good")) as client:
        cache = DiscoveryCache(tmp_path, server.url)
        cache.path.parent.mkdir(parents=True)
        cache.path.write_bytes(b"\xff garbage")
        assert (await Mapper(client, cache).kind("v1", "ConfigMap")) is not None
        kept = cache.read()
        assert kept is not None
        assert kept.minor == (36 if server.modern else 20)
        assert cache.path.stat().st_mode & 0o777 == 0o600
        assert DiscoveryCache(tmp_path, server.url, ttl_s=0).read() is None
        assert DiscoveryCache(tmp_path, "http://other").read() is None


def _event(type: str, name: str, version: str) -> object:
    return {"type": type, "object": {"kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}}}


async def _watched(builder: Builder, version: str = "") -> list[tuple[str, str]]:
    return [(type.value, found.label) async for type, found in builder.done().watch(version)]


async def test_changes_of_one_type(builder: Builder, server: WriteServer) -> None:
    server.events = [_event("ADDED", "a", "5"), _event("BOOKMARK", "", "6"), _event("DELETED", "a", "7")]
    found = await _watched(builder.types("cm").label_selector("odd=1"), "4")
    assert found == [("ADDED", "configmap/a"), ("DELETED", "configmap/a")]
    path = server.requests[-1][1]
    assert path.startswith("/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=300&resourceVersion=4")
    assert "labelSelector=odd" in path


async def test_changes_of_one_object(builder: Builder, server: WriteServer, tmp_path: Path) -> None:
    server.events = [_event("MODIFIED", "c1", "5")]
    assert await _watched(builder.types_or_names("cm", "c1")) == [("MODIFIED", "configmap/c1")]
    assert server.requests[-1][1].endswith("watch=true&timeoutSeconds=300&fieldSelector=metadata.name%3Dc1")
    file = tmp_path / "one.yaml"
    file.write_text(config_map("c2"))
    fresh = Builder(builder._client, builder._mapper).namespace("default").filenames([str(file)])
    assert await _watched(fresh) == [("MODIFIED", "configmap/c1")]
    assert "metadata.name%3Dc2" in server.requests[-1][1]


@pytest.mark.parametrize("asked", [("cm,deploy", "c1"), ("cm", "c1", "c2")])
async def test_only_one_resource_is_watched(builder: Builder, asked: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="individual resources and resource collections - found 2 objects"):
        await _watched(builder.types_or_names(*asked))


async def test_two_types_are_not_watched(builder: Builder) -> None:
    with pytest.raises(ConfigError, match="found 2 types"):
        await _watched(builder.types("cm", "deploy").select_all())


async def test_a_watch_that_is_too_old_or_refused(builder: Builder, server: WriteServer) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    server.events = [{"type": "ERROR", "object": status}]
    with pytest.raises(Expired):
        await _watched(builder.types("cm").select_all(), "1")
    server.tokens = {"other"}
    with pytest.raises(StatusError, match="Unauthorized"):
        await _watched(builder.types("cm").select_all())
