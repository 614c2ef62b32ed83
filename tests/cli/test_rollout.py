"""The command line of ``kubeproxy rollout``; what the commands do is in tests/commands/rollout/test_command.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.cli import main
from kubeproxy.cli.rollout import _name, status, undo
from kubeproxy.model.errors import ConfigError
from tests.support.web_server import in_thread, web_server


@pytest.mark.parametrize(
    "target",
    [("deployment/web",), ("deploy/web",), ("deployments.apps/web",), ("Deployment", "web"), ("deploy", "web")],
)
def test_the_name_of_a_deployment(target: tuple[str, ...]) -> None:
    assert _name(target) == "web"


@pytest.mark.parametrize(
    "target", [("web",), ("pod/web",), ("deployment/",), ("deployment/a/b",), ("deploy", "a", "b")]
)
def test_other_targets_are_refused(target: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="allowed: deployment/NAME"):
        _name(target)


class Refusing:
    """An API server that answers everything with one Status."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.code, self.reason, self.message = 403, "Forbidden", "no"

    async def answer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        status = {"kind": "Status", "reason": self.reason, "message": self.message, "code": self.code}
        return web.json_response(status, status=self.code)


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    found = Refusing()
    with in_thread(web_server(found.answer)) as server:
        found.url = server.url
        yield found


def test_the_kubeconfig_is_kubectls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: Refusing) -> None:
    """Files of KUBECONFIG are merged, the context has the namespace, and flags win."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("{current-context: it, contexts: [{name: it, context: {cluster: it, namespace: shop}}]}")
    second.write_text('{clusters: [{name: it, cluster: {server: "http://127.0.0.1:1"}}]}')
    monkeypatch.setenv("KUBECONFIG", f"/nonexistent:{first}:{second}")
    assert main.status_of(["rollout", "pause", "deployment/x", f"--server={refusing.url}"]) == 1
    assert main.status_of(["rollout", "pause", "deployment/x", "-n", "own", f"--server={refusing.url}"]) == 1
    second.write_text(json.dumps({"clusters": [{"name": "it", "cluster": {"server": refusing.url}}]}))
    assert main.status_of(["rollout", "pause", "deployment/y"]) == 1
    assert refusing.paths == [
        "/apis/apps/v1/namespaces/shop/deployments/x",
        "/apis/apps/v1/namespaces/own/deployments/x",
        "/apis/apps/v1/namespaces/shop/deployments/y",
    ]


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        (401, "Unauthorized", "Unauthorized", "error: You must be logged in to the server (Unauthorized)\n"),
        (403, "Forbidden", "you may not", "Error from server (Forbidden): you may not\n"),
        (
            404,
            "NotFound",
            'deployments.apps "x" not found',
            'Error from server (NotFound): deployments.apps "x" not found\n',
        ),
        (500, "", "broken", "Error from server: broken\n"),
    ],
)
def test_refusals_are_worded_as_kubectls(
    code: int,
    reason: str,
    message: str,
    said: str,
    refusing: Refusing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusing.code, refusing.reason, refusing.message = code, reason, message
    assert main.status_of(["rollout", "status", "deployment/x", f"--server={refusing.url}"]) == 1
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("command", [["rollout", "status", "deployment/x"], ["rolling-update", "x", "--image=y"]])
def test_what_commands_log_is_not_on_stdout(command: list[str], tmp_path: Path, refusing: Refusing) -> None:
    """In a process of its own: the tests set logging up."""
    conf = tmp_path / "conf"
    user = {"name": "it", "user": {"tokenFile": str(tmp_path / "none")}}
    cluster = {"name": "it", "cluster": {"server": refusing.url}}
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    conf.write_text(
        json.dumps({"current-context": "it", "contexts": [context], "clusters": [cluster], "users": [user]})
    )
    program = "import structlog, sys; from kubeproxy.cli import main; status = main.status_of(sys.argv[1:]); "
    program += "structlog.get_logger('kubeproxy').info('not shown'); structlog.get_logger('kubeproxy').warning('shown')"
    found = subprocess.run(
        [sys.executable, "-c", program, *command, f"--kubeconfig={conf}"], capture_output=True, text=True, timeout=60
    )
    assert found.stdout == ""
    assert "tokenFile" in found.stderr
    assert "shown" in found.stderr.splitlines()[-1]
    assert "not shown" not in found.stderr


@pytest.mark.parametrize(
    ("flags", "value"), [([], "none"), (["--dry-run"], "client"), (["--dry-run=client"], "client")]
)
def test_a_dry_run_of_undo(flags: list[str], value: str) -> None:
    assert undo.make_context("undo", ["deployment/x", *flags]).params["dry_run"] == value


@pytest.mark.parametrize("flag", ["--watch=false", "-w=false", "--no-watch"])
def test_switches_that_are_on_can_be_switched_off(flag: str) -> None:
    assert status.make_context("status", ["deployment/x", flag]).params["watch"] is False
    assert status.make_context("status", ["deployment/x"]).params["watch"] is True


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["rollout", "status", "pod/x"], 1, "allowed: deployment/NAME"),
        (["rollout", "status", "deployment/x", "--timeout=5x"], 1, "--timeout: found '5x'"),
        (["rollout", "status"], 1, "allowed: deployment/NAME"),
        (["rollout", "status", "deployment/x", "--context=nowhere"], 1, "does not exist"),
        (["rollout", "status", "deployment/x", "--kubeconfig=/nonexistent"], 1, "no such file"),
        (["rollout", "undo", "deployment/x", "--to-revision=-1"], 1, "--to-revision"),
        (
            ["rollout", "pause", "deployment/x", "--server=http://127.0.0.1:1"],
            1,
            "server 127.0.0.1:1 was refused - did",
        ),
        (["rollout", "nothing"], 64, "nothing"),
        (
            ["rollout", "undo", "deployment/x", "--dry-run=server"],
            1,
            "--dry-run: found 'server'; allowed: none or client",
        ),
    ],
)
def test_exit_status_and_reason(args: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(args) == status
    assert said in capsys.readouterr().err
