"""Core dumps, and zombies of a container's first process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = """if True:
    import asyncio, ctypes, os, subprocess, time
    from pathlib import Path
    from kubeproxy.daemon.process_limits import reap_adopted

    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def children():
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

    async def main():
        ours = subprocess.Popen(["sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE)
        subprocess.run(["sh", "-c", "for i in 1 2 3; do (exit 0) & done; exec sleep 0"])
        task = asyncio.create_task(reap_adopted(look_s=0.2))
        deadline = time.monotonic() + 20
        while children() != [str(ours.pid)]:
            assert time.monotonic() < deadline, children()
            await asyncio.sleep(0.01)
        ours.communicate()
        assert ours.returncode == 7
        task.cancel()

    asyncio.run(main())
"""


ABORTED = "import os; from kubeproxy.daemon.process_limits import forbid_core_dumps; forbid_core_dumps(); os.abort()"


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 0])
def test_finding_16_an_aborted_process_leaves_no_core_dump(tmp_path: Path, limit: int) -> None:
    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))

    dying = subprocess.Popen([sys.executable, "-c", ABORTED], cwd=tmp_path, preexec_fn=allow)
    _, status = os.waitpid(dying.pid, 0)
    dying.returncode = 0
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    assert list(tmp_path.iterdir()) == []


def test_a_first_process_reaps_orphaned_zombies() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
