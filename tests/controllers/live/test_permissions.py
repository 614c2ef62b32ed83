"""The rights of deploy/controllers suffice on a real API server with RBAC, and the secure port asks that server.

Skipped unless KUBERNETES_BINARIES names the directory of etcd and kube-apiserver.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from kubeproxy.kubernetes.client.client import Client
from tests.controllers.live.control_plane import BINARIES, ControlPlane, ask, binaries
from tests.controllers.live.node import Nodes
from tests.controllers.live.play import Play
from tests.system.deploy.manifests import DEPLOY

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

ACCOUNT = "system:serviceaccount:kube-system:kubeproxy-controllers"
COLLECTIONS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings",
}
SCRAPER: Any = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "scraper"},
    "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
}


async def _grant(client: Client) -> None:
    """Create what deploy/controllers grants, and a scraper's right to read the metrics."""
    for path in sorted(DEPLOY.glob("controllers/*role*.yaml")):
        item = yaml.safe_load(path.read_text())
        await ask(client, "POST", COLLECTIONS[item["kind"]], item)
    await ask(client, "POST", COLLECTIONS["ClusterRole"], SCRAPER)
    binding = {
        "metadata": {"name": "scraper"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scraper"},
        "subjects": [{"kind": "User", "name": "scraper", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await ask(client, "POST", COLLECTIONS["ClusterRoleBinding"], binding)


async def _status(port: int, page: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{port}{page}", ssl=False, headers=headers) as response,
    ):
        return response.status


async def _work(client: Client, it: Play) -> None:
    """Everything that the controllers ever ask for."""
    await it.begin(revisionHistoryLimit=0)
    await it.complete()
    await it.keep("replicationcontrollers", "rc")
    await it.orphan()  # the ReplicaSet, and then pods of both kinds
    for pod in await it.pods():
        path = f"/api/v1/namespaces/{it.namespace}/pods/{pod['metadata']['name']}"
        await ask(client, "PATCH", path, {"metadata": {"ownerReferences": None}})
    await it.settle()
    await it.image("web:2")
    await it.complete()
    await it.annotate(**{"deprecated.deployment.rollback.to": "9"})
    for replicas in (5, 3, 5, 3):
        await it.edit(replicas=replicas)
        await it.complete()
    await it.settle()


def test_the_rights_suffice(tmp_path: Path) -> None:
    programs = binaries()
    assert programs is not None
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    users = {"controllers": ACCOUNT, "scraper": "scraper"}
    flags = ("--authorization-mode=RBAC", "--enable-admission-plugins=OwnerReferencesPermissionEnforcement")

    async def play(plane: ControlPlane) -> None:
        client = await plane.connect()
        nodes = asyncio.create_task(Nodes(client).run())
        try:
            await _grant(client)
            plane.start_ours(f"--secure-port={port}", "--bind-address=127.0.0.1", user="controllers")
            it = Play(client, "rights")
            await _work(client, it)
            assert await _status(port, "/readyz") == 200
            assert await _status(port, "/metrics") == 403
            assert await _status(port, "/metrics", "nonsense") == 401
            assert await _status(port, "/metrics", "scraper") == 200
            assert await _status(port, "/statusz", "scraper") == 403
            assert await _status(port, "/statusz", "admin") == 200
            assert plane.stop("ours", signal.SIGTERM) == 0
        finally:
            nodes.cancel()
            await asyncio.gather(nodes, return_exceptions=True)
            await client.close()

    with ControlPlane(tmp_path, programs, users=users, flags=flags) as plane:
        asyncio.run(play(plane))
        entries = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    asked = [entry for entry in entries if entry["user"]["username"] == ACCOUNT]
    forbidden = [entry for entry in asked if entry.get("responseStatus", {}).get("code") == 403]
    assert [f"{entry['verb']} {entry['requestURI']}" for entry in forbidden] == []
    done = {(entry["verb"], entry["objectRef"]["resource"]) for entry in asked if "objectRef" in entry}
    assert {
        ("patch", "deployments"),
        ("delete", "replicasets"),
        ("patch", "pods"),
        ("patch", "replicationcontrollers"),
        ("patch", "events"),
        ("create", "tokenreviews"),
        ("create", "subjectaccessreviews"),
        ("patch", "leases"),
    } <= done
