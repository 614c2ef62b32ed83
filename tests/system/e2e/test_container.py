"""The daemon as the first process of a container (a PID namespace): its control process crashes, hangs, hands over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import QUICK, VIP, Stage, until
from tests.system.e2e.steady_clients import Crowd
from tests.system.e2e.test_restart_and_upgrade import linger, unhurt

pytestmark = pytest.mark.netns

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", KUBEPROXY)
GRACE = "--shutdown-grace=90s"
each_path = pytest.mark.parametrize("netfilter", PATHS)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def init_of(daemon: Daemon) -> int:
    """The first process of its namespace, by its number here."""
    (init,) = children(daemon.process.pid)
    return init


def control_of(daemon: Daemon) -> int | None:
    """The control process: of the children of the first process the one that is not a worker."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(init_of(daemon))}
    return next((pid for pid, command in commands.items() if b"kubeproxy\0run" in command), None)


def serve(stage: Stage, *options: str, netfilter: str) -> Daemon:
    """A container with a daemon, and a Service with three endpoints that answers."""
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(QUICK, GRACE, *options, netfilter=netfilter, command=CONTAINER)
    stage.await_answers(0, 1, 2)
    return daemon


@each_path
def test_the_control_process_is_killed(stage: Stage, netfilter: str) -> None:
    """Its workers keep serving, and the next control process relieves them: the container does not end, and the
    connections move."""
    daemon = serve(stage, "--workers=2", netfilter=netfilter)
    before = control_of(daemon)
    assert before is not None
    workers = [pid for pid in children(before) if Path(f"/proc/{pid}/comm").read_text().startswith("kubeproxy-")]
    with Crowd(stage.client, (VIP, 80)) as crowd:
        linger()
        os.kill(before, signal.SIGKILL)
        until(lambda: daemon.log().count("orphaned worker keeps serving") == 2, "orphans have reported")
        until(lambda: control_of(daemon) not in (None, before), "another control process runs")
        until(lambda: daemon.log().count("orphaned worker has ended") == 2, "the orphans have ended")
        linger()
    unhurt(crowd)
    crowd.show(f"control process killed in a container ({netfilter})")
    assert daemon.log().count("previous control process has crashed") == 1
    assert daemon.process.poll() is None
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the orphans have ended, and are reaped")
    stage.await_answers(0, 1, 2)
    os.kill(init_of(daemon), signal.SIGTERM)
    assert daemon.wait() == 0


HANG = "import signal, time; signal.signal(signal.SIGUSR1, lambda number, frame: time.sleep(1000))\n"
"""For Python's `sitecustomize`: a signal by which a process hangs."""


def test_a_hanging_control_process_is_replaced(stage: Stage, tmp_path: Path) -> None:
    """By itself, before the liveness probe of the kubelet would end its workers, too."""
    (tmp_path / "sitecustomize.py").write_text(HANG)
    stage.write_service([0, 1, 2])
    command = ("env", f"PYTHONPATH={tmp_path}", *CONTAINER)
    daemon = stage.daemon(QUICK, "--shutdown-grace=2s", netfilter="nftables", command=command)
    stage.await_answers(0, 1, 2)
    before = control_of(daemon)
    assert before is not None
    with Crowd(stage.client, (VIP, 80), rate=50, long=0) as crowd:
        os.kill(before, signal.SIGUSR1)
        until(lambda: control_of(daemon) not in (None, before), "another control process runs", within_s=60)
        until(lambda: "orphaned worker has ended" in daemon.log(), "it serves")
    unhurt(crowd, long=False)
    assert "Timeout (0:00:20)!" in daemon.log(), "it says where it hung"
    stage.await_answers(0, 1, 2)


def test_a_superseded_container_waits_for_its_end(stage: Stage) -> None:
    """Otherwise the kubelet would start it again, and it would take over in its turn."""
    first = serve(stage, netfilter="nftables")
    port = kernel_state.redirects(stage.node)[VIP, 80]
    second = stage.daemon(QUICK, GRACE, netfilter="nftables", command=CONTAINER)
    until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules lead to the new instance")
    until(lambda: not children(init_of(first)), "only the first process is left")
    assert first.process.poll() is None
    os.kill(init_of(first), signal.SIGTERM)
    assert first.wait() == 0
    assert second.process.poll() is None
    stage.await_answers(0, 1, 2)


def test_a_superseded_container_serves_again_if_the_newer_one_crashes(stage: Stage) -> None:
    """And only until that one, or another, is there."""
    first = serve(stage, netfilter="nftables")
    second = stage.daemon(QUICK, GRACE, netfilter="nftables", command=CONTAINER)
    until(lambda: not children(init_of(first)), "only the first process is left")
    second.process.kill()
    second.wait()
    until(lambda: "serving again" in first.log(), "the first container has seen it")
    stage.await_answers(0, 1, 2)
    port = kernel_state.redirects(stage.node)[VIP, 80]
    third = stage.daemon(QUICK, GRACE, netfilter="nftables", command=CONTAINER)
    until(lambda: kernel_state.redirects(stage.node)[VIP, 80] != port, "the rules lead to the newer instance")
    until(lambda: not children(init_of(first)), "only the first process is left")
    assert first.process.poll() is third.process.poll() is None


def test_a_container_that_cannot_start_ends_with_the_exit_status(stage: Stage, tmp_path: Path) -> None:
    """So the kubelet sees it, and starts it again with its own back-off."""
    daemon = stage.daemon("--workers=many", command=CONTAINER, ready_within_s=None)
    assert daemon.wait() == 64
    no_token = tmp_path / "kubeconfig"
    no_token.write_text("apiVersion: v1\nkind: Config\n")
    assert stage.daemon(f"--kubeconfig={no_token}", command=CONTAINER, ready_within_s=None).wait() == 64
