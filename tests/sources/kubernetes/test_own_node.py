"""This node's object: followed, logged, and optional for serving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.model import Address, Node
from kubeproxy.sources.kubernetes.source import KubernetesSource
from tests.kubernetes.harness import QUICK, Remembering, connected
from tests.support.apiserver import V1_20, V1_36, ApiServer, Cluster, Fault, Version
from tests.support.apiserver.generate import fill
from tests.support.apiserver.recordings import exchange
from tests.support.waiting import until

NODE = Node(
    name="node-a",
    addresses=(Address("10.9.0.11"), Address("fd00:9::11"), Address("203.0.113.11")),
    zone="zone-a",
)
FORBIDDEN = Fault(path="/api/v1/nodes", kind="status", status=403, times=-1)


class NodeMemory:
    """A `NodeSink` that keeps all nodes it received, and their UIDs apart, which differ by server."""

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.uids: list[str] = []

    def set_node(self, node: Node | None) -> None:
        self.nodes.append(None if node is None else replace(node, uid="", pod_cidrs=()))
        if node is not None:
            self.uids.append(node.uid)

    @property
    def last(self) -> Node | None:
        return self.nodes[-1] if self.nodes else None


def recorded(version: Version = V1_36) -> dict[str, Any]:
    found = exchange(f"{version.name}/node/list-own.json")
    assert found is not None
    item: dict[str, Any] = found.json["items"][0]
    return item


def changed(item: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    return {**item, "spec": {**item["spec"], **spec}}


def cluster() -> Cluster:
    found = Cluster(version=100)
    fill(found, services=3, endpoints_each=2)
    found.put("nodes", {"metadata": {"name": "node-b"}, "spec": {}, "status": {}})
    return found


@asynccontextmanager
async def following(server: ApiServer) -> AsyncIterator[tuple[KubernetesSource, Remembering, NodeMemory]]:
    """A running source with a node name."""
    sink, memory = Remembering(), NodeMemory()
    async with connected(server.url) as client:
        source = KubernetesSource(
            client=client, sink=sink, node_name="node-a", node_sink=memory, pace=QUICK, random=Random(7)
        )
        task = asyncio.ensure_future(source.run())
        try:
            await until(lambda: sink.complete)
            yield source, sink, memory
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=lambda version: version.name)
async def test_the_node_is_followed_from_creation_to_deletion(version: Version) -> None:
    item = recorded(version)
    async with ApiServer(cluster(), version=version) as server, following(server) as (_, _, memory):
        await until(lambda: memory.nodes == [None])
        server.cluster.put("nodes", item)
        await until(lambda: memory.last == NODE)
        server.cluster.put("nodes", changed(item, taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]))
        await until(lambda: memory.last is not None and not memory.last.eligible)
        server.cluster.put("nodes", {"metadata": {"name": "node-c"}, "spec": {}, "status": {}})
        server.cluster.delete("nodes", "", "node-a")
        await until(lambda: memory.last is None)
        assert [node.name for node in memory.nodes if node is not None] == ["node-a", "node-a"]
        (uid,) = set(memory.uids)
        assert uid


async def test_the_reason_for_a_failing_healthz_is_logged_once() -> None:
    item = recorded()
    with capture_logs() as logs:
        async with ApiServer(cluster()) as server, following(server) as (_, _, memory):
            await until(lambda: logged(logs, "no such node"))
            server.cluster.put("nodes", item)
            await until(lambda: logged(logs, "eligible again"))
            leaving = changed(item, taints=[{"key": "ToBeDeletedByClusterAutoscaler"}])
            for zone in ("a", "b"):
                leaving["metadata"] = {**item["metadata"], "labels": {"topology.kubernetes.io/zone": zone}}
                server.cluster.put("nodes", leaving)
                await until(lambda: memory.last is not None and memory.last.zone == zone)  # noqa: B023
            server.cluster.delete("nodes", "", "node-a")
            await until(lambda: len(logged(logs, "no such node")) == 2)
    events = [(line["event"], line["node"]) for line in logs if line.get("healthz") == 503]
    absent, leaves = "API server has no such node", "this node is about to be deleted"
    assert events == [(absent, "node-a"), (leaves, "node-a"), (absent, "node-a")]
    assert "--hostname-override" in logged(logs, "no such node")[0]["hint"]


async def test_only_its_own_node_is_requested() -> None:
    async with ApiServer(cluster()) as server, following(server) as (source, _, memory):
        await until(lambda: memory.nodes == [None] and server.counts["watch nodes"] == 1)
        asked = [request.query for request in server.requests if request.path == "/api/v1/nodes"]
        assert [query["fieldSelector"] for query in asked] == ["metadata.name=node-a"] * 2
        assert [state.resource for state in source.state()] == ["services", "endpointslices", "nodes"]


async def test_a_new_list_finds_missed_changes() -> None:
    server = ApiServer(cluster())
    server.cluster.put("nodes", recorded())
    async with server, following(server) as (_, _, memory):
        await until(lambda: memory.last == NODE and server.counts["watch nodes"])
        await server.stop()
        server.cluster.delete("nodes", "", "node-a")
        server.cluster.expire()
        assert memory.last == NODE, "an outage removes nothing"
        await server.start()
        await until(lambda: memory.last is None)


async def test_a_wrong_address_is_logged_and_the_rest_is_used() -> None:
    item = recorded()
    item = {**item, "status": {"addresses": [{"type": "InternalIP", "address": "x"}, *item["status"]["addresses"]]}}
    with capture_logs() as logs:
        server = ApiServer(cluster())
        server.cluster.put("nodes", item)
        async with server, following(server) as (_, _, memory):
            await until(lambda: memory.last == NODE)
    faults = [line for line in logs if line["event"] == "parts of object not served"]
    assert [line["name"] for line in faults] == ["node-a"]
    assert "status.addresses[0].address" in faults[0]["faults"][0]


async def test_forbidden_nodes_are_logged_once_and_services_are_served() -> None:
    with capture_logs() as logs:
        server = ApiServer(cluster())
        server.cluster.put("nodes", recorded())
        server.inject(FORBIDDEN)
        async with server, following(server) as (source, sink, memory):
            await until(lambda: server.counts["list nodes"] > 5 and logged(logs, "reading this node is forbidden"))
            assert len(sink.services) == 3
            refused = next(state for state in source.state() if state.resource == "nodes")
            assert set(refused.failures) == {"forbidden"}
            assert memory.nodes == []
            server.clear_faults()
            await until(lambda: memory.last == NODE)
            await until(lambda: logged(logs, "reading this node is allowed again"))
    assert len(logged(logs, "reading this node is forbidden")) == 1
    assert [line["log_level"] for line in logs].count("warning") == 1


async def test_a_server_that_forbids_everything_at_start_causes_no_node_warning() -> None:
    with capture_logs() as logs:
        server = ApiServer(cluster())
        server.cluster.put("nodes", recorded())
        server.forbidden = True
        async with server:
            asyncio.get_running_loop().call_later(0.2, setattr, server, "forbidden", False)
            async with following(server) as (_, _, memory):
                await until(lambda: memory.last == NODE)
                await until(lambda: logged(logs, "API server back"))
    assert not logged(logs, "reading this node is forbidden")


def logged(logs: list[Any], words: str) -> list[Any]:
    return [line for line in logs if words in line["event"]]
