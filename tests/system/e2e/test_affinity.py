"""Session affinity across takeovers, restarts and crashes of processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kubeproxy.dataplane.workers.pool import BINDINGS_S
from tests.support.lab import Daemon
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import QUICK, VIP, Stage, endpoints, service, until

pytestmark = pytest.mark.netns

CLIENTS = [f"10.2.0.{number}" for number in range(101, 141)]
GRACE = "--shutdown-grace=5s"


@pytest.fixture
def many(stage: Stage) -> Iterator[Stage]:
    """A client with many addresses, and a Service with affinity and four endpoints."""
    stage.client.ip(*(f"addr add {client}/24 dev eth0" for client in CLIENTS))
    web = service()
    web["spec"]["sessionAffinity"] = "ClientIP"
    stage.write("web", web, endpoints("web", [0, 1, 2, 3]))
    yield stage
    stage.client.ip(*(f"addr del {client}/24 dev eth0" for client in CLIENTS))


def ask(stage: Stage, client: str) -> str:
    """The name that answers a client address."""
    with stage.client.make_socket(socket.AF_INET) as sock:
        sock.settimeout(20)
        sock.bind((client, 0))
        sock.connect((VIP, 80))
        sock.sendall(b"name\n")
        return sock.recv(100).decode()


def paired(stage: Stage) -> dict[str, str]:
    """The answering endpoint of each client."""
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(CLIENTS, pool.map(lambda client: ask(stage, client), CLIENTS), strict=True))


def settled(stage: Stage) -> dict[str, str]:
    """The answering endpoint of each client, once each endpoint has one."""
    until(lambda: (VIP, 80) in kernel_state.redirects(stage.node), "a rule")
    seen = paired(stage)
    assert set(seen.values()) == {f"pod-{pod}" for pod in range(4)}
    assert paired(stage) == seen
    return seen


def workers_of(daemon: Daemon) -> set[int]:
    """The worker processes of a daemon."""
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    return {int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("kubeproxy-")}


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 2), (2, 0)])
def test_takeover(many: Stage, before: int, after: int) -> None:
    first = many.daemon(QUICK, GRACE, f"--workers={before}")
    seen = settled(many)
    port = kernel_state.redirects(many.node)[VIP, 80]
    many.daemon(QUICK, GRACE, f"--workers={after}")
    until(lambda: kernel_state.redirects(many.node)[VIP, 80] != port, "the rules lead to the new instance")
    assert paired(many) == seen
    assert f"clients={len(CLIENTS)}" in many.running[1].log()
    until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
    assert first.wait(40) == 0
    assert paired(many) == seen
    many.daemon(QUICK, GRACE, f"--workers={before}")
    until(lambda: "new instance has taken over" in many.running[1].log(), "and the next")
    assert paired(many) == seen


def test_the_control_process_is_killed(many: Stage) -> None:
    """The orphaned workers send the affinity table to the next control process."""
    first = many.daemon(QUICK, GRACE, "--workers=2")
    seen = settled(many)
    first.process.kill()
    first.process.wait()
    assert paired(many) == seen
    port = kernel_state.redirects(many.node)[VIP, 80]
    second = many.daemon(QUICK, GRACE, "--workers=1")
    until(lambda: kernel_state.redirects(many.node)[VIP, 80] != port, "the rules lead to the next one")
    assert paired(many) == seen
    until(lambda: second.log().count("orphaned worker has ended") == 2, "the orphans have ended")


def test_re_exec(many: Stage) -> None:
    daemon = many.daemon(QUICK, GRACE, "--workers=2")
    seen = settled(many)
    port = kernel_state.redirects(many.node)[VIP, 80]
    daemon.process.send_signal(signal.SIGUSR2)
    until(lambda: kernel_state.redirects(many.node)[VIP, 80] != port, "the rules lead to new workers")
    assert paired(many) == seen


def test_workers_are_killed(many: Stage) -> None:
    daemon = many.daemon(QUICK, "--workers=2")
    settled(many)

    def kept() -> bool:
        seen = paired(many)
        time.sleep(1.5 * BINDINGS_S)  # a crash loses the changes since a worker's last report
        before = workers_of(daemon)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(workers_of(daemon) - before) == 2, "others take their places")
        return paired(many) == seen

    until(kept, "all clients keep their endpoints")
