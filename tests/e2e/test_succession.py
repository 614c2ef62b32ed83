"""Restart, upgrade and crash without loss: 300 new connections a second and 50 long ones, while a process follows
another in every way there is."""

from __future__ import annotations

import time

import pytest

from tests.e2e import kernel
from tests.e2e.conftest import ADAPTERS
from tests.e2e.crowd import Crowd
from tests.e2e.stage import QUICK, VIP, Stage, silent, until
from tests.lab import Daemon

pytestmark = pytest.mark.netns

each_adapter = pytest.mark.parametrize("netfilter", ADAPTERS)
GRACE = "--shutdown-grace=30s"


def serve(stage: Stage, *options: str, netfilter: str) -> Daemon:
    """A daemon, and a Service with three endpoints that answers."""
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(QUICK, GRACE, *options, netfilter=netfilter)
    stage.await_answers(0, 1, 2)
    return daemon


def unhurt(crowd: Crowd, *, long: bool = True) -> None:
    """Nobody failed."""
    assert crowd.report.answered > 100
    assert crowd.report.failures == []
    if long:
        assert crowd.report.long_broken == []


def linger(seconds: float = 1.0) -> None:
    """Time for traffic to meet what has been done; not a condition waited for."""
    time.sleep(seconds)


@each_adapter
@pytest.mark.parametrize("workers", ["0", "2"])
def test_takeover(stage: Stage, netfilter: str, workers: str) -> None:
    """A successor started beside takes over: rules, node ports, health and metrics ports."""
    first = serve(stage, f"--workers={workers}", netfilter=netfilter)
    port = kernel.redirects(stage.node)[VIP, 80]
    with Crowd(stage.client, (VIP, 80)) as crowd:
        linger()
        second = stage.daemon(QUICK, GRACE, f"--workers={workers}", netfilter=netfilter)
        until(lambda: kernel.redirects(stage.node)[VIP, 80] != port, "the rules lead to the successor")
        until(lambda: "a successor has taken over" in first.log(), "the first one makes way")
        linger()
    unhurt(crowd)
    crowd.show(f"takeover ({netfilter}, {workers} workers)")
    assert first.wait(40) == 0
    assert second.process.poll() is None
    assert second.get("/livez").status == 200
    assert "cut off" not in first.log()
    stage.await_answers(0, 1, 2)


@each_adapter
def test_stop_and_start(stage: Stage, netfilter: str) -> None:
    """Without a successor clients wait for the next process instead of being refused."""
    first = serve(stage, "--shutdown-grace=1s", netfilter=netfilter)
    with Crowd(stage.client, (VIP, 80), long=0) as far, Crowd(stage.node, (VIP, 80), rate=50, long=0) as near:
        linger()
        assert first.terminate() == 0
        assert silent(stage.client, (VIP, 80))
        stage.daemon(QUICK, netfilter=netfilter)
        linger(2.0)
    for crowd, whence in ((far, "a client"), (near, "the node itself")):
        unhurt(crowd)
        crowd.show(f"stop and start, from {whence} ({netfilter})")
    assert far.report.delays_s


@each_adapter
def test_everything_killed(stage: Stage, netfilter: str) -> None:
    """No rule of a dead run leads a client to whoever has its port now, and the next start repairs everything."""
    first = serve(stage, "--workers=0", netfilter=netfilter)
    port = kernel.redirects(stage.node)[VIP, 80]
    first.process.kill()
    first.process.wait()
    with stage.node.listen(("0.0.0.0", port)):
        for host in stage.asking:
            assert silent(host, (VIP, 80)), "the port is somebody else's now"
        stage.daemon(QUICK, netfilter=netfilter)
        stage.await_answers(0, 1, 2)
