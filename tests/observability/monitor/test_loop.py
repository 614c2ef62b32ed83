from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Address, Target
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.monitor.loop import BEAT_S, FULL_S, MOST_AT_ONCE, Monitor
from tests.observability.conftest import WEB_IPV4, Serving, worker_status


@pytest.fixture(autouse=True)
def _fresh_structlog() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


class Patient:
    """A pulse whose time is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.serving = Serving(workers=[worker_status()])
        self.health = ProxyHealth(timeout_s=60.0)
        self.metrics = Metrics()
        self.complaint: str | None = None
        self.monitor = Monitor(
            data_plane=self.serving,
            health=self.health,
            metrics=self.metrics,
            elsewhere={"conntrack": lambda: self.complaint},
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        self.late_s = [0.0, 0.03]
        """How late each sleep is, until none comes any more."""

    async def sleep(self, seconds: float) -> None:
        if not self.late_s:
            raise asyncio.CancelledError
        self.now += seconds + self.late_s.pop(0)

    def degraded(self) -> tuple[str, ...]:
        return self.health.at(self.now).degraded


async def test_the_loops_lag_is_what_a_sleep_took_too_long() -> None:
    patient = Patient()
    with contextlib.suppress(asyncio.CancelledError):
        await patient.monitor.beat()
    assert patient.now == pytest.approx(2 * BEAT_S + 0.03)
    value = patient.metrics.registry.get_sample_value
    assert value("kubeproxy_loop_lag_seconds_count") == 2
    assert value("kubeproxy_loop_lag_seconds_bucket", {"le": "0.025"}) == 1
    assert value("kubeproxy_loop_lag_seconds_sum") == pytest.approx(0.03)


async def test_the_workers_are_looked_at_again_and_again() -> None:
    patient = Patient()
    with contextlib.suppress(asyncio.CancelledError):
        await patient.monitor.look()
    assert patient.now > 10.0
    assert patient.metrics.registry.get_sample_value("kubeproxy_worker_up", {"worker": "0"}) == 1


async def test_clients_that_wait_for_descriptors_are_told_of_once_a_minute() -> None:
    patient = Patient()
    with capture_logs() as logs:
        for accept_paused in (0, 3, 5, 5):
            patient.serving.workers = [worker_status(accept_paused=accept_paused, descriptors=1000)]
            await patient.monitor.look_once()
            patient.now += 5.0
        assert [(entry["log_level"], entry["times"], entry["limit"]) for entry in logs] == [("warning", 3, 1000)]
        assert patient.degraded() == ("clients have to wait for want of descriptors",)
        patient.now += 60.0
        patient.serving.workers = [worker_status(accept_paused=9, descriptors=1000)]
        await patient.monitor.look_once()
    assert [(entry["times"], entry.get("suppressed")) for entry in logs] == [(3, None), (4, 1)]
    patient.now += 61.0
    await patient.monitor.look_once()
    assert patient.degraded() == ()


async def test_clients_that_wait_for_memory_are_told_of_once_a_minute() -> None:
    """And not told that descriptors were missing: they are held back by those."""
    patient = Patient()
    with capture_logs() as logs:
        for shortages in (0, 1, 4, 6):
            patient.serving.workers = [worker_status(memory_shortages=shortages, accept_paused=shortages)]
            await patient.monitor.look_once()
            patient.now += 5.0
        assert [entry["event"] for entry in logs] == ["clients have to wait for want of memory"]
        assert patient.degraded() == ("clients have to wait for want of memory",)
        patient.now += 61.0
        await patient.monitor.look_once()
    assert patient.degraded() == ()
    assert len(logs) == 1
    assert patient.metrics.registry.get_sample_value("kubeproxy_memory_shortages_total") == 6


async def test_load_balancers_are_told_when_no_client_can_be_served_for_minutes() -> None:
    """Finding 1: /healthz stayed green. While one process has room, clients are served."""
    patient = Patient()

    async def look(*descriptors: int) -> bool:
        patient.serving.workers = [worker_status(i, descriptors=used) for i, used in enumerate(descriptors)]
        await patient.monitor.look_once()
        return patient.health.at(patient.now).healthy

    assert await look(999, 1000)
    patient.now += FULL_S - 1
    assert await look(1000, 1000)
    patient.now += 1
    assert not await look(1000, 1000)
    state = patient.health.at(patient.now)
    assert state.exhausted is not None
    assert "descriptors" in state.exhausted
    assert state.live, "a restart would cut those that are served"
    assert await look(1000, 900)
    patient.now += FULL_S
    assert await look(1000, 1000)


async def test_loops_are_logged_once_a_minute() -> None:
    patient = Patient()
    with capture_logs() as logs:
        for looped in (0, 2, 7):
            patient.serving.workers = [worker_status(looped=looped)]
            await patient.monitor.look_once()
            patient.now += 5.0
    assert [(entry["event"], entry["times"]) for entry in logs] == [("connections come through too many proxies", 2)]


async def test_want_of_ports_is_told_of_once_a_minute() -> None:
    patient = Patient()
    with capture_logs() as logs:
        for ports_exhausted in (0, 2, 7):
            patient.serving.workers = [worker_status(ports_exhausted=ports_exhausted)]
            await patient.monitor.look_once()
            patient.now += 5.0
    assert [(entry["times"], "ip_local_port_range" in entry["remedy"]) for entry in logs] == [(2, True)]
    assert patient.metrics.registry.get_sample_value("kubeproxy_ephemeral_ports_exhausted_total") == 7


async def test_endpoints_that_do_not_answer_are_named_and_when_there_are_many_counted() -> None:
    patient, many = Patient(), MOST_AT_ONCE + 3
    targets = [Target(Address(f"10.0.0.{n}"), 80) for n in range(1, many + 1)]
    with capture_logs() as logs:
        patient.serving.ejected_by_port = {
            WEB_IPV4: [EjectedEndpoint(target, 0, "refused", 2, 1.0) for target in targets]
        }
        for _ in range(2):
            await patient.monitor.look_once()
            patient.now += 5.0
        patient.serving.ejected_by_port = {}
        await patient.monitor.look_once()
    fallen = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry.get("endpoint") for entry in fallen] == [*map(str, targets[:MOST_AT_ONCE]), None]
    assert (fallen[0]["service"], fallen[0]["reason"], fallen[-1]["endpoints"]) == ("default/web:http", "refused", 3)
    over = [entry for entry in logs if entry["log_level"] == "info"]
    assert [entry.get("endpoints") for entry in over] == [None] * MOST_AT_ONCE + [3]
    assert over[0]["after_s"] == 10.0
    assert patient.degraded() == (), "it is no fault of ours"


async def test_workers_that_keep_dying_are_told_of_and_shown_while_they_do() -> None:
    patient = Patient()
    with capture_logs() as logs:
        patient.serving.problem = "worker 1 keeps dying: killed by signal 9"
        for _ in range(3):
            await patient.monitor.look_once()
            patient.now += 5.0
        assert patient.degraded() == ("worker 1 keeps dying: killed by signal 9",)
        patient.serving.problem = None
        await patient.monitor.look_once()
        assert patient.degraded() == ()
        patient.serving.problem = "worker 0 keeps dying: exit status 1"
        await patient.monitor.look_once()
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [
        ("error", "worker 1 keeps dying: killed by signal 9"),
        ("error", "worker 0 keeps dying: exit status 1"),
    ]


async def test_gaps_in_the_access_log_are_told_of() -> None:
    patient = Patient()
    with capture_logs() as logs:
        for log_skipped in (0, 5, 5, 6):
            patient.serving.workers = [worker_status(log_skipped=log_skipped)]
            await patient.monitor.look_once()
    assert [(entry["log_level"], entry["connections"]) for entry in logs] == [("warning", 5)]


async def test_complaints_from_elsewhere_are_shown_while_they_last_and_logged_once_a_minute() -> None:
    patient = Patient()
    patient.complaint = "connection tracking is nearly full"
    with capture_logs() as logs:
        for _ in range(3):
            await patient.monitor.look_once()
            assert patient.degraded() == ("connection tracking is nearly full",)
    assert [entry["event"] for entry in logs] == ["connection tracking is nearly full"]
    patient.complaint = None
    await patient.monitor.look_once()
    assert patient.degraded() == ()
