"""What an operator sees of the kernel path: data paths, connections, the rescue, traces."""

from __future__ import annotations

import json
import time

import pytest

from kubeproxy.daemon.kernel_path_counters import FRESH_S
from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import METRICS
from tests.system.e2e.full_services import CLIENT, V4
from tests.system.e2e.stage import KERNEL, TARGET, VIP, Stage, ask, ask_often, until
from tests.system.e2e.test_kernel_path import await_slots, serve, write_sticky
from tests.system.e2e.test_observability import Scrape

pytestmark = pytest.mark.netns


def await_count(daemon: Daemon, count: int) -> None:
    """Wait until so many connections of the Service are counted, and no more."""
    until(
        lambda: (
            (scrape := Scrape(daemon)).has("kubeproxy_kernel_connections_total")
            and scrape("kubeproxy_kernel_connections_total", service="web") >= count
        ),
        f"{count} connections are counted",
    )
    time.sleep(2 * FRESH_S)  # another reading, which must not find any more
    assert Scrape(daemon)("kubeproxy_kernel_connections_total", service="web") == count


def test_connections_are_counted_by_service_and_named_by_path(stage: Stage) -> None:
    daemon = serve(stage, pods=[0, 1])
    until(lambda: Scrape(daemon)("kubeproxy_rescue_working") == 1, "the rescue works")
    assert not Scrape(daemon).has("kubeproxy_kernel_connections_total")
    assert ask_often(stage.client, (VIP, 80), 10).total() == 10
    assert ask_often(stage.node, (VIP, 80), 5).total() == 5
    await_count(daemon, 15)
    scrape = Scrape(daemon)
    assert scrape("kubeproxy_connections_accepted_total", service="web") == 0
    assert scrape("kubeproxy_data_path_frontends", data_path="kernel") == 1
    text = daemon.get("/statusz?service=default/web", address=METRICS).body
    assert "data path   kernel, to 2 endpoints in equal shares; 15 connections so far" in text
    head = daemon.get("/statusz", address=METRICS).body
    assert "data paths  1 frontend by the kernel, 0 by userspace" in head
    assert "rescue      works for " in head
    # Another number of endpoints: the kernel's counter begins anew, the sum does not.
    stage.write_service([1])
    await_slots(stage, 1)
    for _ in range(3):
        assert ask(stage.client, (VIP, 80)) == "pod-1"
    await_count(daemon, 18)
    # The kernel's counters outlive the process, and count for it no more.
    daemon.close()
    daemon = serve(stage, pods=[1])
    until(lambda: Scrape(daemon)("kubeproxy_rescue_working") == 1, "the rescue works")
    assert ask(stage.client, (VIP, 80)) == "pod-1"
    await_count(daemon, 1)


def test_with_affinity_a_connection_counts_once_and_the_trace_has_the_endpoint(stage: Stage) -> None:
    write_sticky(stage, [0, 1])
    daemon = stage.daemon("--workers=1", netfilter=KERNEL)
    await_slots(stage, 0, 1)
    trace = f"/trace?to={VIP}:80&from={CLIENT[V4]}"
    assert "it is bound to none yet" in daemon.get(trace, address=METRICS).body
    seen = ask_often(stage.client, (VIP, 80), 7)
    assert list(seen.values()) == [7]
    await_count(daemon, 7)
    (pod,) = seen
    report = json.loads(daemon.get(trace, address=METRICS).body)
    assert report["outcome"] == "forwarded"
    bound = f"it is bound to {Network.pod_v4(int(pod[-1]))}:{TARGET}, for "
    assert any(bound in step for step in report["steps"]), report["steps"]


def test_an_ejected_endpoint_has_the_part_that_noticed_its_failure(stage: Stage) -> None:
    dead = f"{Network.pod_v4(0)[:-1]}99"
    daemon = serve(stage, pods=[0, 1])
    until(lambda: Scrape(daemon)("kubeproxy_rescue_working") == 1, "the rescue works")
    stage.write_service([0, 1, dead])
    address = f"{dead}:{TARGET}"

    def noticed() -> bool:
        assert ask_often(stage.client, (VIP, 80), 8).total() == 8
        text = daemon.get("/statusz?service=default/web", address=METRICS).body
        line = next((line for line in text.splitlines() if address in line), "")
        return ", noticed on the kernel path" in line

    until(noticed, "the status has the ejection")
    report = json.loads(daemon.get(f"/trace?to={VIP}:80&from={CLIENT[V4]}", address=METRICS).body)
    assert report["outcome"] == "forwarded"
    assert any(step.strip().startswith(address) and "noticed" in step for step in report["steps"]), report["steps"]
    scrape = Scrape(daemon)
    assert scrape("kubeproxy_rescue_ejections_total", noticed_by="rescue") >= 1
    assert scrape("kubeproxy_rescue_ejected") == 1
    assert scrape("kubeproxy_rescue_resent_total") >= 1
