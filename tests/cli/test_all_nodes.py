"""`kubeproxy status --all-nodes` through an API server that proxies to pods."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest

from kubeproxy.cli import main
from kubeproxy.observability.status.document import Status
from tests.observability.status.observation import NOW, health, shop
from tests.observability.status.test_build import whole

PODS = ("node-1", "node-2", "node-3", "node-4")


class Handler(BaseHTTPRequestHandler):
    """Lists four pods in two pages, and answers for three of them."""

    statuses: dict[str, Status]
    queries: list[str]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.endswith("/pods"):
            assert parse_qs(query)["labelSelector"] == ["app.kubernetes.io/name=kubeproxy"]
            second = "continue=next" in query
            items = [
                {"metadata": {"name": f"pod-{it}"}, "spec": {"nodeName": it}, "status": {"phase": "Running"}}
                for it in (PODS[2:] if second else PODS[:2])
            ]
            self._answer(200, json.dumps({"items": items, "metadata": {} if second else {"continue": "next"}}).encode())
            return
        self.queries.append(query)
        node = path.split("/")[6].split(":")[1].removeprefix("pod-")
        if node not in self.statuses:
            failure = {"kind": "Status", "status": "Failure", "code": 503, "message": "no route to that pod"}
            self._answer(503, json.dumps(failure).encode())
        else:
            self._answer(200, msgspec.json.encode(self.statuses[node]))

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep still."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    good = replace(whole(shop()), services=())
    Handler.statuses = {
        "node-1": good,
        "node-2": whole(shop(health=health(failing="no nft").at(NOW))),
        "node-3": replace(good, totals=replace(good.totals, services=1)),
    }
    Handler.queries = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c"}}
    path.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
    yield str(path)
    server.shutdown()
    server.server_close()


def test_nodes_that_are_not_well_come_first_and_disagreements_are_named(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
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
    assert all(parse_qs(query)["state"] == ["problem,ejected,empty,waiting"] for query in Handler.queries)


def test_a_healthy_cluster_is_exit_status_0(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    Handler.statuses = dict.fromkeys(PODS, Handler.statuses["node-1"])
    assert main.status_of(["status", "--all-nodes", "--kubeconfig", kubeconfig, "-o", "json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)) == sorted(PODS)


def test_a_service_goes_with_one_node_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["status", "web", "--all-nodes"]) == 64
    assert "--all-nodes" in capsys.readouterr().err
