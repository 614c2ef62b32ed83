from __future__ import annotations

import pytest
import structlog
from structlog.testing import LogCapture

from kubeproxy.observability.logs.ratelimit import RateLimit, RateLimitedLog


def test_a_repetition_within_the_interval_is_counted() -> None:
    limit = RateLimit(interval_s=60)
    assert limit.allow("full", 0.0) == 0
    assert [limit.allow("full", now) for now in (0.0, 1.0, 59.9)] == [None, None, None]
    assert limit.allow("full", 60.0) == 3
    assert limit.allow("full", 119.9) is None
    assert limit.allow("full", 120.0) == 1
    assert limit.allow("full", 180.0) == 0


def test_keys_are_limited_separately() -> None:
    limit = RateLimit(interval_s=60)
    assert limit.allow(("dial", "a"), 0.0) == 0
    assert limit.allow(("dial", "b"), 0.0) == 0
    assert limit.allow(("dial", "a"), 0.0) is None


def test_memory_is_bounded_and_the_oldest_key_is_dropped_first() -> None:
    limit = RateLimit(interval_s=60, capacity=3)
    for second in range(1000):
        assert limit.allow(second, float(second)) == 0
        assert len(limit) <= 3
    assert limit.allow(999, 999.0) is None
    assert limit.allow(997, 999.0) is None
    assert limit.allow(996, 999.0) == 0


def test_a_key_that_was_allowed_again_is_the_newest() -> None:
    limit = RateLimit(interval_s=60, capacity=2)
    for key, now in (("a", 0.0), ("b", 1.0), ("a", 100.0), ("c", 101.0)):
        assert limit.allow(key, now) == 0
    assert limit.allow("a", 102.0) is None
    assert limit.allow("b", 102.0) == 0


def test_a_reset_key_is_allowed_at_once() -> None:
    limit = RateLimit(interval_s=60)
    limit.allow("refused", 0.0)
    limit.allow("refused", 1.0)
    limit.reset("refused")
    assert limit.allow("refused", 2.0) == 0


@pytest.mark.parametrize(("interval_s", "capacity"), [(0.0, 10), (-1.0, 10), (1.0, 0)])
def test_invalid_bounds_are_refused(interval_s: float, capacity: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        RateLimit(interval_s=interval_s, capacity=capacity)


def test_the_next_message_carries_the_number_of_suppressed_ones() -> None:
    capture = LogCapture()
    now = 0.0
    log = RateLimitedLog(
        structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.stdlib.BoundLogger),
        interval_s=10,
        clock=lambda: now,
    )
    for second in range(12):
        now = float(second)
        log.warning("out of descriptors", limit=256)
    log.error("out of descriptors", key="other", limit=256)
    log.reset("other")
    log.info("out of descriptors", key="other")
    assert capture.entries == [
        {"log_level": "warning", "event": "out of descriptors", "limit": 256},
        {"log_level": "warning", "event": "out of descriptors", "limit": 256, "suppressed": 9},
        {"log_level": "error", "event": "out of descriptors", "limit": 256},
        {"log_level": "info", "event": "out of descriptors"},
    ]
