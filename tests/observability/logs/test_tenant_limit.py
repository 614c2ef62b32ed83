"""A tenant that changes objects without end fills no log."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from kubeproxy.observability.logs import setup
from kubeproxy.observability.logs.tenant_limit import (
    CAPACITY,
    INTERVAL_S,
    OF_NAMESPACE,
    OF_OBJECT,
    TENANTS,
    TenantLimit,
)
from tests.support.clock import Clock


def passes(limit: TenantLimit, service: str) -> dict[str, Any] | None:
    event = {"event": "service has a problem", "service": service, "problem": "x"}
    try:
        return dict(limit(None, "warning", event))
    except structlog.DropEvent:
        return None


def test_an_object_has_some_lines_a_minute() -> None:
    clock = Clock()
    limit = TenantLimit(clock)
    shown = [passes(limit, "evil/flapping") for _ in range(384)]
    assert [event is not None for event in shown] == [True] * OF_OBJECT + [False] * (384 - OF_OBJECT)
    assert limit.suppressed == 384 - OF_OBJECT
    said = passes(limit, "evil/other")
    assert said is not None, "others of the namespace have theirs"
    assert said["suppressed"] == 384 - OF_OBJECT
    clock.now += INTERVAL_S
    assert passes(limit, "evil/flapping") is not None


def test_a_namespace_has_its_part() -> None:
    limit = TenantLimit(Clock())
    shown = [passes(limit, f"evil/service-{number}") for number in range(1000)]
    assert sum(event is not None for event in shown) == OF_NAMESPACE
    assert passes(limit, "victim/web") is not None


def test_memory_is_bounded_and_other_lines_pass() -> None:
    limit = TenantLimit(Clock())
    for number in range(2 * CAPACITY):
        passes(limit, f"tenant-{number}/web")
    assert len(limit._counts) == CAPACITY
    for _ in range(1000):
        assert limit(None, "info", {"event": "serving", "services": 1}) == {"event": "serving", "services": 1}


def test_the_log_is_set_up_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = TENANTS.suppressed
    setup.configure(verbosity=0)
    log = structlog.get_logger("kubeproxy.tests")
    for number in range(100):
        log.warning("service has a problem", service="evil/of-this-test", problem=f"number {number}")
    assert TENANTS.suppressed - before == 100 - OF_OBJECT
