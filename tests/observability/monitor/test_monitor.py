from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Address, Target
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.monitor.monitor import FULL_S, LAG_S, MAX_NAMED, Monitor
from tests.observability.conftest import WEB_IPV4, Serving, worker_status

pytestmark = pytest.mark.usefixtures("fresh_structlog")


class Watched:
    """A monitor with a manual clock and its data plane."""

    def __init__(self) -> None:
        self.now = 0.0
        self.serving = Serving(workers=[worker_status()])
        self.health = ProxyHealth(timeout_s=60.0)
        self.metrics = Metrics()
        self.problem: str | None = None
        self.fault: str | None = None
        self.monitor = Monitor(
            is_endpoint=lambda name, target: True,
            data_plane=self.serving,
            health=self.health,
            metrics=self.metrics,
            checks={Reason.CONNTRACK: lambda: self.problem, Reason.MANIFESTS: lambda: self.fault},
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        self.late_s = [0.0, 0.03]
        """How late each sleep ends; after the last one the task is cancelled."""

    async def sleep(self, seconds: float) -> None:
        if not self.late_s:
            raise asyncio.CancelledError
        self.now += seconds + self.late_s.pop(0)

    def degraded(self) -> tuple[str, ...]:
        return tuple(self.health.at(self.now).degraded.values())


async def test_the_lag_of_the_loop_is_how_late_a_sleep_ends() -> None:
    watched = Watched()
    with contextlib.suppress(asyncio.CancelledError):
        await watched.monitor.measure_lag()
    assert watched.now == pytest.approx(2 * LAG_S + 0.03)
    value = watched.metrics.registry.get_sample_value
    assert value("kubeproxy_loop_lag_seconds_count") == 2
    assert value("kubeproxy_loop_lag_seconds_bucket", {"le": "0.025"}) == 1
    assert value("kubeproxy_loop_lag_seconds_sum") == pytest.approx(0.03)


async def test_the_workers_are_checked_periodically() -> None:
    watched = Watched()
    with contextlib.suppress(asyncio.CancelledError):
        await watched.monitor.run()
    assert watched.now > 10.0
    assert watched.metrics.registry.get_sample_value("kubeproxy_worker_up", {"worker": "0"}) == 1


async def test_a_lack_of_descriptors_is_logged_once_a_minute() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for accept_paused in (0, 3, 5, 5):
            watched.serving.workers = [worker_status(accept_paused=accept_paused, descriptors=1000)]
            await watched.monitor.check()
            watched.now += 5.0
        assert [(entry["log_level"], entry["times"], entry["limit"]) for entry in logs] == [("warning", 3, 1000)]
        assert watched.degraded() == ("no descriptors for new clients",)
        watched.now += 60.0
        watched.serving.workers = [worker_status(accept_paused=9, descriptors=1000)]
        await watched.monitor.check()
    assert [(entry["times"], entry.get("suppressed")) for entry in logs] == [(3, None), (4, 1)]
    watched.now += 61.0
    await watched.monitor.check()
    assert watched.degraded() == ()


async def test_a_lack_of_memory_is_logged_once_a_minute() -> None:
    """It is not logged as a lack of descriptors, although accept pauses for it, too."""
    watched = Watched()
    with capture_logs() as logs:
        for shortages in (0, 1, 4, 6):
            watched.serving.workers = [worker_status(memory_shortages=shortages, accept_paused=shortages)]
            await watched.monitor.check()
            watched.now += 5.0
        assert [entry["event"] for entry in logs] == ["no memory for new clients"]
        assert watched.degraded() == ("no memory for new clients",)
        watched.now += 61.0
        await watched.monitor.check()
    assert watched.degraded() == ()
    assert len(logs) == 1
    assert watched.metrics.registry.get_sample_value("kubeproxy_memory_shortages_total") == 6


async def test_the_node_is_unhealthy_when_no_client_can_be_served_for_minutes() -> None:
    """Finding 1: /healthz stayed healthy. While one worker has descriptors, clients are served."""
    watched = Watched()

    async def look(*descriptors: int) -> bool:
        watched.serving.workers = [worker_status(i, descriptors=used) for i, used in enumerate(descriptors)]
        await watched.monitor.check()
        return watched.health.at(watched.now).healthy

    watched.health.updated(watched.now)
    assert await look(999, 1000)
    watched.now += FULL_S - 1
    assert await look(1000, 1000)
    watched.now += 1
    assert not await look(1000, 1000)
    state = watched.health.at(watched.now)
    assert state.exhausted is not None
    assert "descriptors" in state.exhausted
    assert state.live, "a restart would cut open connections"
    assert await look(1000, 900)
    watched.now += FULL_S
    assert await look(1000, 1000)


async def test_connections_that_the_access_log_skips_are_a_reason_for_a_minute() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for skipped in (0, 3):
            watched.serving.workers = [worker_status(log_skipped=skipped)]
            await watched.monitor.check()
        assert list(watched.health.at(watched.now).reasons) == [Reason.STARTING, Reason.ACCESS_LOG]
        watched.now += 61.0
        await watched.monitor.check()
    assert watched.degraded() == ()
    assert [(entry["event"], entry["connections"]) for entry in logs] == [("access log skipped connections", 3)]


async def test_a_problem_that_its_own_part_logs_is_only_shown() -> None:
    watched = Watched()
    with capture_logs() as logs:
        watched.fault = "fault in web.yaml document 2"
        await watched.monitor.check()
        assert list(watched.health.at(watched.now).reasons) == [Reason.STARTING, Reason.MANIFESTS]
        watched.fault = None
        await watched.monitor.check()
    assert watched.degraded() == ()
    assert logs == []


async def test_a_problem_with_other_numbers_is_the_same_problem() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for entries in (95, 96, 97):
            watched.problem = f"nearly full ({entries} entries of 100)"
            await watched.monitor.check()
        watched.problem = "was full, and 3 connections were lost"
        await watched.monitor.check()
    assert [entry["event"] for entry in logs] == ["nearly full (95 entries of 100)", watched.problem]


async def test_loops_are_logged_once_a_minute() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for looped in (0, 2, 7):
            watched.serving.workers = [worker_status(looped=looped)]
            await watched.monitor.check()
            watched.now += 5.0
    assert [(entry["event"], entry["times"]) for entry in logs] == [("connections loop through proxies", 2)]


async def test_a_lack_of_ephemeral_ports_is_logged_once_a_minute() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for ports_exhausted in (0, 2, 7):
            watched.serving.workers = [worker_status(ports_exhausted=ports_exhausted)]
            await watched.monitor.check()
            watched.now += 5.0
    assert [(entry["times"], "ip_local_port_range" in entry["remedy"]) for entry in logs] == [(2, True)]
    assert watched.metrics.registry.get_sample_value("kubeproxy_ephemeral_ports_exhausted_total") == 7


async def test_ejected_endpoints_are_logged_by_name_and_many_are_counted() -> None:
    watched, many = Watched(), MAX_NAMED + 3
    targets = [Target(Address(f"10.0.0.{n}"), 80) for n in range(1, many + 1)]
    with capture_logs() as logs:
        watched.serving.ejected_by_port = {
            WEB_IPV4: [EjectedEndpoint(target, 0, "refused", 2, 1.0) for target in targets]
        }
        for _ in range(2):
            await watched.monitor.check()
            watched.now += 5.0
        watched.serving.ejected_by_port = {}
        await watched.monitor.check()
    ejected = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry.get("endpoint") for entry in ejected] == [*map(str, targets[:MAX_NAMED]), None]
    assert (ejected[0]["service"], ejected[0]["reason"], ejected[-1]["endpoints"]) == ("default/web:http", "refused", 3)
    restored = [entry for entry in logs if entry["log_level"] == "info"]
    assert [entry.get("endpoints") for entry in restored] == [None] * MAX_NAMED + [3]
    assert restored[0]["after_s"] == 10.0
    assert watched.degraded() == (), "an ejected endpoint is no fault of the proxy"


async def test_workers_that_keep_dying_are_logged_and_shown() -> None:
    watched = Watched()
    with capture_logs() as logs:
        watched.serving.problem = "worker 1 keeps dying: killed by signal 9"
        for _ in range(3):
            await watched.monitor.check()
            watched.now += 5.0
        assert watched.degraded() == ("worker 1 keeps dying: killed by signal 9",)
        watched.serving.problem = None
        await watched.monitor.check()
        assert watched.degraded() == ()
        watched.serving.problem = "worker 0 keeps dying: exit status 1"
        await watched.monitor.check()
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [
        ("error", "worker 1 keeps dying: killed by signal 9"),
        ("error", "worker 0 keeps dying: exit status 1"),
    ]


async def test_gaps_in_the_access_log_are_logged() -> None:
    watched = Watched()
    with capture_logs() as logs:
        for log_skipped in (0, 5, 5, 6):
            watched.serving.workers = [worker_status(log_skipped=log_skipped)]
            await watched.monitor.check()
    assert [(entry["log_level"], entry["connections"]) for entry in logs] == [("warning", 5)]


async def test_problems_of_other_parts_are_shown_while_they_last_and_logged_once_a_minute() -> None:
    watched = Watched()
    watched.problem = "connection tracking is nearly full"
    with capture_logs() as logs:
        for _ in range(3):
            await watched.monitor.check()
            assert watched.degraded() == ("connection tracking is nearly full",)
    assert [entry["event"] for entry in logs] == ["connection tracking is nearly full"]
    watched.problem = None
    await watched.monitor.check()
    assert watched.degraded() == ()
