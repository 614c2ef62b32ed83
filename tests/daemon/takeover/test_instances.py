"""Names that runs hold."""

from __future__ import annotations

import subprocess
import sys
from uuid import uuid4

from kubeproxy.daemon.takeover.instances import InstanceMarker


def test_a_run_counts_until_its_last_process_has_ended() -> None:
    prefix = f"kubeproxy-test/{uuid4()}/"
    mine = InstanceMarker(prefix)
    assert not mine.others()
    another = InstanceMarker(prefix)
    worker = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(another.fileno(),)
    )
    try:
        assert mine.others()
        another.close()
        assert mine.others(), "its worker lives"
    finally:
        worker.kill()
        worker.communicate()
    assert not mine.others()
    mine.close()
