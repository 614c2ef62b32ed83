"""Core dumps, and zombies of other programs."""

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


HUNG = """if True:
    import asyncio, sys, time
    from kubeproxy.daemon.process_limits import end_if_hung

    async def main():
        watching = asyncio.create_task(end_if_hung(hung_s=1.0))
        await asyncio.sleep(2.0)
        print("alive", flush=True)
        if "hangs" in sys.argv:
            time.sleep(60)
        watching.cancel()
        await asyncio.wait([watching])
        time.sleep(1.5)
        print("done")

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


def test_children_of_the_program_before_are_reaped() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_whose_loop_hangs_ends_and_says_where() -> None:
    quick, hanging = (
        subprocess.run([sys.executable, "-c", HUNG, how], capture_output=True, text=True, timeout=50, check=False)
        for how in ("lives", "hangs")
    )
    assert (quick.returncode, quick.stdout.split(), quick.stderr) == (0, ["alive", "done"], "")
    assert (hanging.returncode, hanging.stdout.split()) == (1, ["alive"])
    assert "in main" in hanging.stderr
