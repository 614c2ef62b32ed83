"""Another manager of the same objects is noticed by its Lease and by what it has made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.manager.rival import OTHER, Rival, RivalError
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError

NOW = 1_795_219_200.0
"""2026-11-21T00:00:00Z."""
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{OTHER}"


def pod(name: str, made: str = "2026-11-21T00:00:01Z") -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    metadata = {"name": name, "namespace": "demo", "uid": name, "creationTimestamp": made, "ownerReferences": [owner]}
    return msgspec.convert({"metadata": metadata}, Pod)


class Server(Client):
    """Answers from what the test has put there."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.made: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[str] = []

    async def get_json(self, path: str, query: Mapping[str, str] | None = None, **_: Any) -> bytearray:
        if path == LEASE:
            if self.lease is None:
                raise ApiError("leases: not found", cause="other", status=404)
            return bytearray(msgspec.json.encode({"spec": self.lease}))
        assert path == "/api/v1/namespaces/demo/pods"
        name = (query or {})["fieldSelector"].removeprefix("metadata.name=")
        self.asked.append(name)
        return bytearray(msgspec.json.encode({"items": [{"metadata": {"managedFields": self.made.get(name, [])}}]}))

    async def send_json(self, *arguments: Any, **more: Any) -> bytearray:
        raise AssertionError("it only reads")


def change(
    manager: str, *, subresource: str = "", fields: tuple[str, ...] = ("f:metadata", "f:spec")
) -> dict[str, Any]:
    return {"manager": manager, "subresource": subresource, "fieldsV1": {name: {} for name in fields}}


def rival(server: Server, pods: list[Pod], *, exclusive: bool = False) -> Rival:
    return Rival(server, pods=pods, replica_sets=[], exclusive=exclusive, clock=lambda: NOW)


async def looked(it: Rival) -> None:
    """Let it look once; it ends by itself only if it is to be exclusive."""
    task = asyncio.ensure_future(it.run())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_kube_controller_manager_has_made_is_named() -> None:
    server = Server()
    server.made = {"ours": [change("kubeproxy")], "theirs": [change(OTHER), change("kubelet", subresource="status")]}
    found = rival(server, [pod("ours"), pod("theirs")])
    with capture_logs() as logs:
        await looked(found)
    assert found.made == "demo/theirs"
    assert "demo/theirs" in found.text
    assert [it["event"] for it in logs if it["log_level"] == "error"] == ["another manager keeps the same objects"]
    await looked(found)
    assert server.asked == ["ours", "theirs"], "each object is looked at once"


async def test_changes_of_a_status_prove_nothing() -> None:
    server = Server()
    server.made = {"ours": [change("kubeproxy"), change(OTHER, subresource="status", fields=("f:status",))]}
    found = rival(server, [pod("ours"), pod("old", made="2026-11-20T00:00:00Z")])
    await looked(found)
    assert (found.made, found.text) == ("", "")
    assert server.asked == ["ours"], "those from before this process led are not looked at"


async def test_the_lease_is_a_warning() -> None:
    server = Server()
    server.lease = {
        "holderIdentity": "node-1_x",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-11-20T23:59:55.000000Z",
    }
    found = rival(server, [])
    with capture_logs() as logs:
        await looked(found)
        await looked(found)
    assert found.holder == "node-1_x"
    assert [it["event"] for it in logs] == ["kube-controller-manager leads, too"]
    server.lease["renewTime"] = "2026-11-20T22:00:00.000000Z"
    await looked(found)
    assert found.holder == "", "nobody renews it any more"


async def test_one_that_is_to_be_the_only_one_ends() -> None:
    server = Server()
    server.made = {"theirs": [change(OTHER)]}
    with pytest.raises(RivalError, match="demo/theirs"):
        await rival(server, [pod("theirs")], exclusive=True).run()
