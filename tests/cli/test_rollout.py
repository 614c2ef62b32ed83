"""The command line of ``kubeproxy rollout``; what the commands do is in tests/workloads/test_rollout_command.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.cli import main
from kubeproxy.cli.rollout import _kubeconfig, _name
from kubeproxy.model.errors import ConfigError


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


def test_the_kubeconfig_is_found_as_kubectl_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert _kubeconfig("") == ""  # in the cluster
    assert _kubeconfig("given") == "given"
    home = tmp_path / ".kube" / "config"
    home.parent.mkdir()
    home.write_text("")
    assert _kubeconfig("") == str(home)
    named = tmp_path / "named"
    named.write_text("")
    monkeypatch.setenv("KUBECONFIG", f"/nonexistent:{named}")
    assert _kubeconfig("") == str(named)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["rollout", "status", "pod/x"], 64, "allowed: deployment/NAME"),
        (["rollout", "status", "deployment/x", "--timeout=5"], 64, "--timeout: found '5'"),
        (["rollout", "status", "deployment/x", "--kubeconfig=/nonexistent"], 64, "there is no such file"),
        (["rollout", "undo", "deployment/x", "--to-revision=-1"], 64, "--to-revision"),
        (["rollout", "pause", "deployment/x", "--master=http://127.0.0.1:1"], 1, "error: "),
        (["rollout", "nothing"], 64, "nothing"),
    ],
)
def test_exit_status_and_reason(args: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(args) == status
    assert said in capsys.readouterr().err
