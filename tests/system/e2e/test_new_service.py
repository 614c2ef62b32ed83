"""A Service and its endpoints, which a cluster writes some milliseconds apart, are in effect without a wait."""

from __future__ import annotations

import time

import pytest

from tests.system.e2e.api import ApiHost
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import Stage, endpoints, service, until
from tests.system.e2e.test_kubernetes import in_step

pytestmark = pytest.mark.netns

NEW = ("10.96.0.20", 80)


@pytest.mark.parametrize("netfilter", PATHS)
def test_point_10_a_new_service_does_not_wait_for_the_period(stage: Stage, netfilter: str) -> None:
    """The period is longer than the test waits. How long it took is printed (`pytest -s`)."""
    with ApiHost(stage.client, service(), endpoints("web", [0, 1])) as api:
        options = ("--iptables-min-sync-period=10m", "--iptables-sync-period=1h", f"--master={api.url}")
        daemon = stage.daemon(*options, netfilter=netfilter, manifests=None)
        stage.await_answers(0, 1)
        until(lambda: in_step(daemon), "both watches work")
        api.put(service("new", NEW[0]))
        time.sleep(0.01)
        api.put(endpoints("new", [2]))
        began = time.monotonic()
        stage.await_answers(2, address=NEW)
        print(f"{netfilter}: usable after {time.monotonic() - began:.3f} s, eight answers and polling included")
        stage.clear()
