"""When a node writes its drain report."""

from __future__ import annotations

import pytest

from kubeproxy.daemon.report_schedule import BURST, COUNTS_S, HEARTBEAT_S, NAMESPACE_S, ReportSchedule, news
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain_report import NodeReport, ServiceReport

A = Address("10.0.0.1")
WEB = ServiceName("shop", "web")
NOTHING = NodeReport()


def report(generation: int = 1, open_: int = 0, unused: bool = False) -> NodeReport:
    found = ServiceReport(generation, frozenset({A}) if unused else frozenset(), open={A: open_} if open_ else {})
    return NodeReport({WEB: found})


def written(report: NodeReport, random: float = 1.0) -> ReportSchedule:
    """A schedule that wrote its report at 100."""
    schedule = ReportSchedule(lambda: random)
    assert schedule.due(report, 0.0, 100.0) <= 100.0, "the first report is due at once"
    schedule.written(report, 100.0)
    return schedule


def test_without_news_only_the_heartbeat_is_due() -> None:
    assert written(NOTHING).due(NOTHING, 0.0, 101.0) == 100 + HEARTBEAT_S
    assert written(NOTHING, 0.0).due(NOTHING, 0.0, 101.0) == 100 + 0.8 * HEARTBEAT_S, "jitter shortens it"


def test_new_generation_is_due_within_the_spread() -> None:
    assert written(NOTHING, 0.0).due(report(), 10.0, 120.0) == 120.0
    assert written(NOTHING, 0.5).due(report(), 10.0, 120.0) == 125.0


def test_news_keep_their_time_while_more_of_them_come() -> None:
    schedule = written(NOTHING, 0.5)
    assert schedule.due(report(1), 10.0, 120.0) == 125.0
    assert schedule.due(report(2), 10.0, 124.0) == 125.0


def test_two_writes_have_a_pause_between_them() -> None:
    assert written(NOTHING, 0.0).due(report(), 2.0, 100.0) == 102.0


def test_news_of_one_namespace_are_written_at_a_pace_and_do_not_hold_up_those_of_another() -> None:
    """A tenant has its Service changed all the time; the rollout of another is reported as if it were alone."""
    schedule, now, generation, writes = written(NOTHING, 0.0), 100.0, 1, list[float]()
    while now < 400.0:
        generation += 1
        current = report(generation)
        if schedule.due(current, 0.2, now) <= now:
            schedule.written(current, now)
            writes.append(now)
        now += 0.1
    assert len(writes) == pytest.approx(BURST + 300 / NAMESPACE_S, abs=2)
    other = NodeReport({**report(generation + 1).services, ServiceName("victim", "web"): ServiceReport(1)})
    assert schedule.due(other, 0.2, now) <= now


def test_namespace_that_was_quiet_may_write_at_once_again() -> None:
    schedule = written(NOTHING, 0.0)
    for generation in range(2, BURST + 3):
        schedule.due(report(generation), 0.0, 101.0)
        schedule.written(report(generation), 101.0)
    assert schedule.due(report(100), 0.0, 101.0) > 101.0
    assert schedule.due(report(101), 0.0, 200.0) <= 200.0


def test_other_counts_wait_longer_but_the_last_connection_is_news() -> None:
    schedule = written(report(open_=9), 0.0)
    assert schedule.due(report(open_=8), 1.0, 101.0) == 100 + COUNTS_S
    assert schedule.due(report(open_=8), 5.0, 101.0) == 100 + 5 * COUNTS_S, "more slowly where many nodes are"
    assert schedule.due(report(open_=0), 1.0, 102.0) == 102.0


def test_ended_requests_wait_for_the_next_write() -> None:
    assert not news(report(), NOTHING)
    assert written(report()).due(NOTHING, 0.0, 101.0) == 100 + COUNTS_S


def test_pod_in_use_is_news() -> None:
    assert news(report(unused=True), report()) == {"shop"}


def test_failed_writes_are_tried_again_ever_later_up_to_a_limit() -> None:
    schedule = written(NOTHING, 1.0)
    delays = []
    for _ in range(7):
        schedule.failed(200.0)
        delays.append(schedule.due(report(), 0.0, 200.0) - 200)
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    schedule.written(report(), 300.0)
    assert schedule.due(report(2), 0.0, 301.0) == 301.0, "a success ends it"
