"""Finding 2 of the security review: what one tenant writes keeps no node from serving the others, at a start, after a
restart and when a running node has to list anew."""

from __future__ import annotations

import pytest

from tests.support.apiserver import Break
from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.system.e2e.api import ApiHost
from tests.system.e2e.stage import QUICK, VIP, Object, Stage, endpoints, service, until
from tests.system.e2e.test_api_faults import memory_kb
from tests.system.e2e.test_kubernetes import in_step

pytestmark = [pytest.mark.netns, pytest.mark.long]

ANNOTATIONS = 256 << 10
"""The most that an API server takes."""
GROWTH_KB = 64 << 10
"""How much more memory a list of 65 MiB may take than one of a few kilobytes: pieces of it, and what the allocator
leaves in between."""


def heavy(number: int) -> Object:
    """A Service of a tenant's, which asks for nothing and says a lot."""
    vip = f"10.97.{number >> 8}.{number & 255}"
    return service(f"heavy-{number}", vip, metadata={"annotations": {"note": "x" * ANNOTATIONS}, "namespace": "a"})


def start(stage: Stage, api: ApiHost) -> Daemon:
    daemon = stage.daemon(QUICK, f"--master={api.url}", manifests=None)
    stage.await_answers(0, 1, address=(VIP, 80))
    until(lambda: in_step(daemon), "both watches work")
    return daemon


@pytest.mark.timeout(300)
def test_finding_2_a_list_larger_than_any_page(stage: Stage, api: ApiHost) -> None:
    """260 Services of 256 KiB in one piece."""
    small = start(stage, api)
    before_kb = memory_kb(small, "VmHWM")
    small.terminate()
    api.put(*(heavy(number) for number in range(260)))
    daemon = start(stage, api)
    assert memory_kb(daemon, "VmHWM") - before_kb < GROWTH_KB
    # A node that runs has to list anew: its watches end, and what they would go on from is gone.
    api.do(api.server.cluster.expire)
    api.do(lambda: api.server.break_watches(Break.ERROR_410))
    api.put(endpoints("web", [1]))
    stage.await_answers(1, address=(VIP, 80))
    until(lambda: in_step(daemon), "both watches work again")
    assert memory_kb(daemon, "VmHWM") - before_kb < GROWTH_KB
    metrics = daemon.get("/metrics", address=METRICS).body
    assert 'kubeproxy_watch_left_out_objects{resource="services"} 0.0' in metrics
    daemon.terminate()
