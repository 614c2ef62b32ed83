"""Memory and ports that run out, and a link that goes down: who feels it, and what is there again after."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.stage import QUICK, Stage, ask, until
from tests.e2e.test_faults import OTHER, OTHER_VIP, WEB, cpu_s, descriptors, family
from tests.lab import Daemon

pytestmark = pytest.mark.netns

CLIENTS = 2000
MEBIBYTE = 1 << 20


def allow_memory(daemon: Daemon, more: int) -> None:
    """Each of its processes may have so many bytes more than it has: the smallest `ulimit -v` with which it would have
    come so far, and that."""
    for pid in family(daemon):
        size = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert size is not None
        limit = int(size[1]) * 1024 + more
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


@contextmanager
def flood(stage: Stage, request: bytes) -> Iterator[list[socket.socket]]:
    """So many clients of a Service, who all ask and read nothing."""
    with ExitStack() as stack:
        socks = []
        for _ in range(CLIENTS):
            sock = stack.enter_context(stage.client.make_socket())
            sock.setblocking(False)
            sock.connect_ex(WEB)
            socks.append(sock)
        if request:
            for sock in socks:
                with suppress(OSError):  # it waits still
                    sock.send(request)
        yield socks


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("request_", [b"", b"drip 1000 0.1\n"], ids=["silent", "served"])
def test_memory_runs_out(stage: Stage, workers: int, request_: bytes) -> None:
    """Nobody dies of it, other Services are served, and all are when the flood is over, though the limit stays."""
    stage.write_service([0, 1])
    stage.write_service([2, 3], name="other", vip=OTHER_VIP)
    daemon = stage.daemon(QUICK, f"--workers={workers}")
    stage.await_answers(0, 1)
    stage.await_answers(2, 3, address=OTHER)
    processes, before = family(daemon), descriptors(daemon)
    allow_memory(daemon, MEBIBYTE)
    with flood(stage, request_):
        until(lambda: descriptors(daemon) > before + 500, "the flood has come")
        for _ in range(20):
            assert ask(stage.client, OTHER, timeout_s=5).startswith("pod-")
        if not request_:
            used = cpu_s(daemon)
            time.sleep(1.0)
            print(f"\n{descriptors(daemon)} descriptors, {cpu_s(daemon) - used:.1%} of a core while full")
            assert cpu_s(daemon) - used < 0.3
    began = time.monotonic()
    until(lambda: answers(stage), "served again")
    print(f"\nserved again {time.monotonic() - began:.2f} s after the flood")
    until(lambda: descriptors(daemon) <= before + 8, "descriptors are given back")
    assert daemon.process.poll() is None
    assert family(daemon)[0] == processes[0]
    if workers:
        assert family(daemon) == processes, daemon.log()
    assert "internal error" not in daemon.log(), daemon.log()


def answers(stage: Stage) -> bool:
    """Whether the Service that was flooded does."""
    try:
        return ask(stage.client, WEB, timeout_s=2).startswith("pod-")
    except OSError:
        return False
