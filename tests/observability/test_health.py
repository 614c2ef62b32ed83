from __future__ import annotations

from collections.abc import Callable

import pytest

from kubeproxy.model import Family
from kubeproxy.observability.health import ProxyHealth, Reason

Step = Callable[[ProxyHealth], None]


def queued(now: float) -> Step:
    return lambda health: health.queued(now)


def updated(now: float) -> Step:
    return lambda health: health.updated(now)


def progressed(now: float) -> Step:
    return lambda health: health.progressed(now)


def leaving(health: ProxyHealth) -> None:
    health.node_eligible(False)


def staying(health: ProxyHealth) -> None:
    health.node_eligible(True)


def broken(health: ProxyHealth) -> None:
    health.failing("nft: table locked")


def draining(health: ProxyHealth) -> None:
    health.draining()


@pytest.mark.parametrize(
    ("steps", "now", "healthy", "live", "ready"),
    [
        pytest.param([], 1000.0, False, True, False, id="starting"),
        pytest.param([queued(0.0)], 1000.0, False, True, False, id="never synced, though asked long ago"),
        pytest.param([queued(0.0), updated(1.0)], 1000.0, True, True, True, id="synced, nothing to do since"),
        pytest.param([updated(1.0), queued(10.0)], 69.9, True, True, True, id="a change waits, not too long"),
        pytest.param([updated(1.0), queued(10.0)], 70.0, False, False, True, id="a change waits for too long"),
        pytest.param([updated(1.0), queued(10.0), queued(60.0)], 70.0, False, False, True, id="the oldest counts"),
        pytest.param([updated(1.0), queued(10.0), updated(90.0)], 90.0, True, True, True, id="recovered"),
        pytest.param([updated(1.0), queued(2.0), updated(3.0), queued(50.0)], 70.0, True, True, True, id="the next"),
        pytest.param([updated(1.0), queued(10.0), progressed(60.0)], 119.9, True, True, True, id="changes never cease"),
        pytest.param([updated(1.0), queued(10.0), progressed(60.0)], 120.0, False, False, True, id="and then stuck"),
        pytest.param([updated(1.0), progressed(2.0)], 100.0, True, True, True, id="progress without a change"),
        pytest.param([queued(0.0), progressed(2.0)], 3.0, False, True, False, id="progress is not the first sync"),
        pytest.param([updated(1.0), leaving], 2.0, False, True, True, id="the node leaves"),
        pytest.param([leaving], 2.0, False, True, False, id="the node leaves before the first sync"),
        pytest.param([updated(1.0), leaving, staying], 2.0, True, True, True, id="the node stays after all"),
        pytest.param([updated(1.0), broken], 2.0, True, True, True, id="a sync failed, nothing waits for too long"),
        pytest.param([updated(1.0), draining], 2.0, True, True, False, id="draining"),
    ],
)
def test_decision(steps: list[Step], now: float, healthy: bool, live: bool, ready: bool) -> None:
    health = ProxyHealth(timeout_s=60.0)
    for step in steps:
        step(health)
    state = health.at(now)
    assert (state.healthy, state.live, state.ready) == (healthy, live, ready)


def test_a_new_sync_period_applies_at_once() -> None:
    health = ProxyHealth(timeout_s=60.0)
    health.updated(0.0)
    health.queued(0.0)
    assert not health.at(61.0).healthy
    health.timeout_s = 120.0
    assert health.at(61.0).healthy


def test_one_that_is_not_ready_has_reasons() -> None:
    health = ProxyHealth(timeout_s=60.0, families=(Family.IPV4, Family.IPV6))
    assert list(health.at(0.0).reasons) == [Reason.STARTING]
    health.failing("nft: permission denied")
    assert list(health.at(0.0).reasons) == [Reason.STARTING, Reason.SYNC]
    assert health.at(0.0).reasons[Reason.SYNC] == "nft: permission denied"
    health.updated(1.0)
    health.failing(None)
    assert health.at(1.0).ready
    assert health.at(1.0).reasons == {}
    health.draining()
    assert not health.at(1.0).ready
    assert list(health.at(1.0).reasons) == [Reason.DRAINING]
