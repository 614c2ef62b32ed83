"""The watch sees until when processes are there, and what they take."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.system.cluster import memory
from tests.system.cluster.watch import Watch
from tests.system.e2e.stage import until

BUSY = "import time; print(flush=True)\nwhile time.process_time() < 0.3: pass\nprint(flush=True); time.sleep(100)"


def test_an_old_worker_is_gone_and_a_new_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: dict[int, str] = {}

    def living(node: object) -> dict[int, str]:
        return {pid: part for pid, part in processes.items() if Path(f"/proc/{pid}").exists()}

    monkeypatch.setattr(memory, "processes_of", living)
    old, new = (subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2))
    try:
        for it in (old, new):
            assert it.stdout is not None
            it.stdout.readline()
        processes[old.pid] = "worker"
        with Watch(cast("Any", SimpleNamespace())) as watch:
            processes[new.pid] = "worker"
            assert new.stdout is not None
            new.stdout.readline()
            until(lambda: watch.cpu_s >= 0.25, "its time is seen")
            assert watch.gone_at is None
            ended = time.time()
            old.kill()
            old.wait()
            gone = until(lambda: watch.gone_at or 0.0, "its end is seen")
        assert gone >= ended
        assert watch.most_mib > memory.pss_mib(new.pid) / 2 > 1
    finally:
        for it in (old, new):
            it.kill()
            it.communicate()
