"""Queries: what is wrong with them, and how the objects of files are read and placed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import Access
from kubeproxy.kubernetes.client.kubeconfig import ClientConfig
from kubeproxy.kubernetes.client.policy import Policy
from kubeproxy.kubernetes.resource_builder.builder import Builder, Query
from kubeproxy.kubernetes.resource_builder.discovery import DiscoveryCache
from kubeproxy.kubernetes.resource_builder.errors import Errors, UnreadableError
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.model.errors import ConfigError
from tests.commands.create.conftest import config_map
from tests.support.apiserver import V1_20, V1_36, ApiServer, command_cluster


@pytest.fixture(params=[V1_36, V1_20], ids=["aggregated", "legacy"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    async with ApiServer(command_cluster(), version=request.param, tokens={"good"}) as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Access(lambda: ClientConfig(host=server.url, token="good")), Policy.for_command()) as client:
        yield client


async def accept(item: ResourceObject, duplicates: Sequence[str]) -> None:
    """Find nothing wrong with any object."""


def builder(client: Client, *paths: Path, selector: str = "") -> Builder:
    query = Query(filenames=[str(path) for path in paths], namespace="default", selector=selector)
    return Builder(query, Mapper(client, None), validate=accept)


async def test_objects_of_paths_get_their_namespace(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("a") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, namespace: x}\n")
    first, second = await builder(client, path).objects()
    assert (first.namespace, second.namespace) == ("default", "")


async def test_only_objects_with_matching_labels_are_handed_out(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    labelled = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, labels: {odd: '1'}}\n"
    path.write_text(config_map("a") + "---\n" + labelled)
    assert [item.name for item in await builder(client, path, selector=" odd = 1 ").objects()] == ["b"]


async def test_a_broken_document_does_not_affect_those_after_it(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(config_map("a") + "---\nkind: [\n---\n" + config_map("b"))
    first, broken, last = [item async for item in builder(client, path).stream()]
    assert isinstance(broken, UnreadableError)
    assert [item.name for item in (first, last) if isinstance(item, ResourceObject)] == ["a", "b"]
    with pytest.raises(UnreadableError):
        await builder(client, path).objects()


async def test_everything_wrong_with_a_query_is_reported_at_once(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Errors) as raised:
        builder(client, tmp_path / "absent", selector="a in")
    selector, path = raised.value.errors
    assert "the provided selector" in str(selector)
    assert "does not exist" in str(path)
    with pytest.raises(ConfigError, match="the provided selector"):
        builder(client, selector="a in")


async def test_a_broken_cache_is_replaced(client: Client, server: ApiServer, tmp_path: Path) -> None:
    cache = DiscoveryCache(tmp_path, server.url)
    cache.path.parent.mkdir(parents=True)
    cache.path.write_bytes(b"\xff garbage")
    assert (await Mapper(client, cache).kind("v1", "ConfigMap")) is not None
    kept = cache.read()
    assert kept is not None
    assert kept.minor == (36 if server.version is V1_36 else 20)
    assert cache.path.stat().st_mode & 0o777 == 0o600
    assert DiscoveryCache(tmp_path, server.url, ttl_s=0).read() is None
    assert DiscoveryCache(tmp_path, "http://other").read() is None
