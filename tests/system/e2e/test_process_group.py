"""A signal to the whole process group, as `timeout`, supervisord and `systemctl kill` send it: connections are drained
as if it had come to the control process alone, and what is cut in the end sees a reset."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.system.e2e.stage import QUICK, VIP, Stage, until

pytestmark = pytest.mark.netns

each_number = pytest.mark.parametrize("workers", ["0", "2"])
each_signal = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def echoes(sock: socket.socket, text: bytes) -> bool:
    """Whether the endpoint still answers."""
    sock.sendall(text)
    return sock.recv(len(text), socket.MSG_WAITALL) == text


@each_signal
@each_number
def test_open_connections_are_drained(stage: Stage, workers: str, number: signal.Signals) -> None:
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, "--shutdown-grace=30s", f"--workers={workers}")
    stage.await_answers(0, 1)
    held = [stage.client.connect((VIP, 80), timeout=30) for _ in range(8)]
    for sock in held:
        sock.sendall(b"echo\n")
        assert echoes(sock, b"before")
    os.killpg(daemon.process.pid, number)
    until(lambda: "draining" in daemon.log(), "it drains")
    for turn in range(20):
        for sock in held:
            assert echoes(sock, b"during %d" % turn)
    for sock in held:
        sock.close()
    assert daemon.wait() == 0
    assert "cut off" not in daemon.log()
    assert "worker process has ended" not in daemon.log()


@pytest.mark.parametrize("how", ["grace", "second signal"])
@each_number
def test_a_connection_that_is_cut_ends_in_a_reset(stage: Stage, workers: str, how: str) -> None:
    """A client takes the end of a stream for the end of an answer that has no length."""
    stage.write_service([0])
    grace = "2s" if how == "grace" else "60s"
    daemon = stage.daemon(QUICK, f"--shutdown-grace={grace}", f"--workers={workers}")
    stage.await_answers(0)
    held = [stage.client.connect((VIP, 80), timeout=60) for _ in range(4)]
    for sock in held:
        sock.sendall(b"echo\n")
        assert echoes(sock, b"before")
    os.killpg(daemon.process.pid, signal.SIGTERM)
    until(lambda: "draining" in daemon.log(), "it drains")
    if how != "grace":
        os.killpg(daemon.process.pid, signal.SIGTERM)
    for sock in held:
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
        sock.close()
    assert daemon.wait() == 0
    assert "connections are cut off" in daemon.log()


def test_one_worker_is_not_ended_by_sigterm(stage: Stage) -> None:
    """It belongs to the control process, which would only start another."""
    stage.write_service([0])
    daemon = stage.daemon(QUICK, "--workers=1")
    stage.await_answers(0)
    pid = daemon.process.pid
    (worker,) = stage.node.run(["ps", "--ppid", str(pid), "-o", "pid="]).stdout.split()
    with stage.client.connect((VIP, 80), timeout=30) as held:
        held.sendall(b"echo\n")
        os.kill(int(worker), signal.SIGTERM)
        assert echoes(held, b"after")
        stage.await_answers(0)
        assert echoes(held, b"later")
    assert "worker process has ended" not in daemon.log()
