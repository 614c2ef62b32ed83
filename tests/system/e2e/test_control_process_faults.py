"""Faults around the control process: its log, its sockets, its file system. Traffic continues."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import get
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, environment
from tests.system.e2e.stage import QUICK, VIP, Stage, ask, until

pytestmark = pytest.mark.netns


@contextmanager
def running(stage: Stage, directory: Path, *options: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`kubeproxy run` with a log outside the laboratory; ready."""
    command = [KUBEPROXY, "run", f"--manifests={stage.manifests}", "--netfilter=nftables", QUICK, *options]
    process = stage.node.popen(command, env=environment(directory), process_group=0, **more)

    def ready() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            return get(stage.node, HEALTHZ, "/readyz").status == 200
        return False

    try:
        until(ready, "it is ready")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_log_without_a_reader(stage: Stage, tmp_path: Path, workers: int) -> None:
    stage.write_service([0])
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as log, open(writing, "wb") as stderr:
        with running(stage, tmp_path, "--access-log=-", f"--workers={workers}", stderr=stderr) as process:
            stage.await_answers(0)
            room = 1 << 16
            for _ in range(2 * room // 200):  # more lines than a pipe holds
                assert ask(stage.client, (VIP, 80)) == "pod-0"
            stage.write_service([1])
            stage.await_answers(1)
            assert get(stage.node, HEALTHZ, "/healthz").status == 200
            if workers == 0:
                complaint = "stderr has no reader"
                until(lambda: complaint in get(stage.node, HEALTHZ, "/healthz").body, "health says so")
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
        stderr.close()
        assert b" kubeproxy starts " in log.read(room)
