"""Every command that reads a kubeconfig refuses one with a field of a wrong type, before it connects anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.cli.main import status_of

QUOTED = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: secret}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443", insecure-skip-tls-verify: "false"}}]
"""


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["run"], 64),
        (["check"], 64),
        (["controller-manager", "--secure-port=0", "--port=0"], 64),
        (["create", "-f", "/dev/null"], 1),
        (["rolling-update", "a", "b", "--image=x"], 1),
        (["rollout", "status", "deployment/x"], 1),
    ],
)
def test_a_quoted_false_does_not_switch_verification_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str], status: int
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(QUOTED)
    assert status_of([*command, f"--kubeconfig={path}"]) == status
    said = capfd.readouterr().err.replace('\\"', '"')
    assert f'{path}: clusters[0].cluster.insecure-skip-tls-verify: found the text "false"; allowed: true' in said
    assert "secret" not in said
