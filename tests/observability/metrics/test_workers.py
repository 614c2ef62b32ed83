from __future__ import annotations

import os
import subprocess
import sys

from prometheus_client import CollectorRegistry

from kubeproxy.observability.metrics.workers import Workers, consumption
from tests.observability.conftest import worker_status


def values(workers: Workers) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(workers)
    return {
        sample.name.removeprefix("kubeproxy_") + "".join(f" {key}={value}" for key, value in sample.labels.items()): (
            sample.value
        )
        for family in registry.collect()
        for sample in family.samples
    }


def test_each_worker_has_its_number() -> None:
    workers = Workers()
    workers.see([worker_status(0, connections=3, descriptors=10, began=5.0), worker_status(1, connections=4)])
    found = values(workers)
    assert found["worker_connections worker=0"] == 3
    assert found["worker_connections worker=1"] == 4
    assert found["descriptors_used worker=0"] == 10
    assert found["descriptors_limit worker=0"] == 1000
    assert found["worker_start_time_seconds worker=0"] == 5.0
    assert found["worker_up worker=0"] == found["worker_up worker=1"] == 1


def test_a_dead_worker_is_down_and_counted() -> None:
    workers = Workers()
    workers.see([worker_status(0), worker_status(1)])
    workers.see([worker_status(1)], restarts=4)
    found = values(workers)
    assert found["worker_up worker=0"] == 0
    assert found["worker_up worker=1"] == 1
    assert found["worker_restarts_total"] == 4
    assert "worker_connections worker=0" not in found


def test_sums_outlive_the_workers() -> None:
    workers = Workers()
    workers.see(
        [
            worker_status(0, accept_paused=2, dials=(3, 1), dial_seconds=0.5),
            worker_status(1, accept_paused=1, dials=(1,)),
        ]
    )
    workers.see(
        [
            worker_status(0, accept_paused=4, adopted=5, dials=(4, 1), dial_seconds=0.75),
            worker_status(1, accept_paused=1, dials=(1,)),
        ]
    )
    assert workers.accept_paused == 5
    workers.see([worker_status(0, pid=2000, began=9.0, accept_paused=1, log_skipped=7, adopted=2, dials=(0, 0, 2))])
    found = values(workers)
    assert found["accept_paused_total"] == 6
    assert found["moved_connections_total"] == 7
    assert found["access_log_skipped_connections_total"] == 7
    assert found["dial_duration_seconds_bucket le=0.0005"] == 5
    assert found["dial_duration_seconds_bucket le=0.001"] == 6
    assert found["dial_duration_seconds_bucket le=0.0025"] == 8
    assert found["dial_duration_seconds_bucket le=+Inf"] == found["dial_duration_seconds_count"] == 8
    assert found["dial_duration_seconds_sum"] == 0.75


def test_loop_lag_is_the_value_of_the_worker() -> None:
    workers = Workers()
    for lag_s in (0.7, 0.2):
        workers.see([worker_status(0, lag_s=lag_s)])
        for _ in range(2):
            assert values(workers)["worker_loop_lag_seconds worker=0"] == lag_s


def test_consumption_of_a_worker_process() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < .1: pass\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        spent = consumption(child.pid)
        workers = Workers()
        workers.see([worker_status(0, pid=child.pid), worker_status(1, pid=os.getpid())])
        found = values(workers)
        child.communicate(b"\n")
    assert spent is not None
    assert 0.05 <= spent[0] < 5
    assert 1e6 < spent[1] < 1e9
    assert found["worker_cpu_seconds_total worker=0"] >= spent[0]
    assert "worker_cpu_seconds_total worker=1" not in found, "process_* of this process has it"
    assert consumption(child.pid) is None
