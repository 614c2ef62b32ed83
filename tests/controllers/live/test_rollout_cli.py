"""``kubeproxy rollout`` and kubectl's, side by side on a real API server: the same output and exit status.

Skipped unless KUBERNETES_BINARIES names the directory of etcd and kube-apiserver, and there is a kubectl.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.controllers.live.control_plane import BINARIES, ControlPlane, binaries
from tests.controllers.live.node import Nodes
from tests.controllers.live.play import Play

KUBECTL = shutil.which("kubectl")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not here"),
]

OURS = (sys.executable, "-c", "from kubeproxy.cli.main import main; main()")


async def _rollout(command: tuple[str, ...], kubeconfig: Path, *args: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        "rollout",
        *args,
        "-n",
        "cli",
        "--kubeconfig",
        str(kubeconfig),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def _compare(plane: ControlPlane) -> list[str]:
    client = await plane.connect()
    nodes = asyncio.create_task(Nodes(client).run())
    differences = []

    async def both(*args: str) -> None:
        assert KUBECTL is not None
        theirs = await _rollout((KUBECTL,), plane.kubeconfig, *args)
        ours = await _rollout(OURS, plane.kubeconfig, *args)
        if theirs != ours:
            differences.append(f"{args}: kubectl {theirs}, kubeproxy {ours}")

    try:
        it = Play(client, "cli")
        await it.begin()
        await it.settle()
        await it.annotate(**{"kubernetes.io/change-cause": "a reason"})
        await it.image("web:2")
        await it.settle()
        await both("status", "deployment/web")
        await both("history", "deployment/web")
        await both("history", "deploy/web", "--revision=9")
        await both("status", "deployment/none")
        await both("undo", "deployment/web", "--to-revision=7")
        await both("undo", "deployment/web", "--to-revision=2")
        await both("resume", "deployment/web")
        await it.edit(paused=True)
        await both("pause", "deployment/web")
        await both("undo", "deployment/web")
        await both("restart", "deployment/web")
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)
        await client.close()
    return differences


def test_the_same_output_as_kubectls(tmp_path: Path) -> None:
    programs = binaries()
    assert programs is not None
    with ControlPlane(tmp_path, programs) as plane, plane.ours("--leader-elect=false"):
        assert asyncio.run(_compare(plane)) == []
