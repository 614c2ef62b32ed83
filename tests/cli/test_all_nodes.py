"""`kubeproxy status --all-nodes` through an API server that proxies to pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from kubeproxy.cli import main
from tests.observability.status.observation import NOW, health, shop
from tests.observability.status.test_build import whole
from tests.support.web_server import in_thread, web_server

PODS = ("node-1", "node-2", "node-3", "node-4")


class Pods:
    """Lists four pods in two pages, and answers for those that have a status."""

    def __init__(self) -> None:
        good = replace(whole(shop()), services=())
        self.statuses = {
            "node-1": good,
            "node-2": whole(shop(health=health(failing="no nft").at(NOW))),
            "node-3": replace(good, totals=replace(good.totals, services=1)),
        }
        self.states: list[list[str]] = []
        """What was asked of the pods: `state`."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/pods"):
            assert request.query["labelSelector"] == "app.kubernetes.io/name=kubeproxy"
            second = request.query.get("continue") == "next"
            items = [
                {"metadata": {"name": f"pod-{it}"}, "spec": {"nodeName": it}, "status": {"phase": "Running"}}
                for it in (PODS[2:] if second else PODS[:2])
            ]
            return web.json_response({"items": items, "metadata": {} if second else {"continue": "next"}})
        self.states.append(request.query.getall("state"))
        node = request.path.split("/")[6].split(":")[1].removeprefix("pod-")
        if node not in self.statuses:
            failure = {"kind": "Status", "status": "Failure", "code": 503, "message": "no route to that pod"}
            return web.json_response(failure, status=503)
        return web.Response(body=msgspec.json.encode(self.statuses[node]), content_type="application/json")


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest.fixture
def kubeconfig(pods: Pods, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "kubeconfig"
    with in_thread(web_server(pods.answer)) as server:
        cluster = {"name": "c", "cluster": {"server": server.url}}
        context = {"name": "c", "context": {"cluster": "c"}}
        path.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
        yield str(path)


def test_nodes_that_are_not_well_come_first_and_disagreements_are_named(
    pods: Pods, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.status_of(["status", "--all-nodes", "--kubeconfig", kubeconfig]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 nodes: 3 answered, 2 healthy"
    assert [line.split()[0] for line in lines[2:7]] == ["NODE", "node-4", "node-2", "node-1", "node-3"]
    assert "NO ANSWER" in lines[3]
    assert "no route to that pod" in lines[3]
    assert "sync: no nft" in lines[4]
    assert "nodes disagree about the number of Services: 1 to " in "\n".join(lines)
    row = next(line for line in lines if line.startswith("shop/web"))
    assert row.split(maxsplit=2)[1:] == ["ejected", "1 of 3: node-2"]
    assert pods.states == [["problem,ejected,empty,waiting"]] * 4


def test_a_healthy_cluster_is_exit_status_0(pods: Pods, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    pods.statuses = dict.fromkeys(PODS, pods.statuses["node-1"])
    assert main.status_of(["status", "--all-nodes", "--kubeconfig", kubeconfig, "-o", "json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)) == sorted(PODS)


def test_a_service_goes_with_one_node_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["status", "web", "--all-nodes"]) == 64
    assert "--all-nodes" in capsys.readouterr().err
