from __future__ import annotations

import pytest
import structlog
from structlog.testing import LogCapture

from kubeproxy.observability.logs.ratelimit import RateLimitedLog, Repeats


def test_a_repeat_within_the_interval_is_counted_and_told_with_the_next() -> None:
    repeats = Repeats(interval_s=60)
    assert repeats.admit("full", 0.0) == 0
    assert [repeats.admit("full", now) for now in (0.0, 1.0, 59.9)] == [None, None, None]
    assert repeats.admit("full", 60.0) == 3
    assert repeats.admit("full", 119.9) is None
    assert repeats.admit("full", 120.0) == 1
    assert repeats.admit("full", 180.0) == 0


def test_keys_do_not_silence_each_other() -> None:
    repeats = Repeats(interval_s=60)
    assert repeats.admit(("dial", "a"), 0.0) == 0
    assert repeats.admit(("dial", "b"), 0.0) == 0
    assert repeats.admit(("dial", "a"), 0.0) is None


def test_memory_is_bounded_and_what_was_said_longest_ago_goes_first() -> None:
    repeats = Repeats(interval_s=60, capacity=3)
    for second in range(1000):
        assert repeats.admit(second, float(second)) == 0
        assert len(repeats) <= 3
    assert repeats.admit(999, 999.0) is None
    assert repeats.admit(997, 999.0) is None
    assert repeats.admit(996, 999.0) == 0


def test_a_key_that_was_said_again_is_the_youngest() -> None:
    repeats = Repeats(interval_s=60, capacity=2)
    for key, now in (("a", 0.0), ("b", 1.0), ("a", 100.0), ("c", 101.0)):
        assert repeats.admit(key, now) == 0
    assert repeats.admit("a", 102.0) is None
    assert repeats.admit("b", 102.0) == 0


def test_what_is_over_is_news_when_it_comes_again() -> None:
    repeats = Repeats(interval_s=60)
    repeats.admit("refused", 0.0)
    repeats.admit("refused", 1.0)
    repeats.forget("refused")
    assert repeats.admit("refused", 2.0) == 0


@pytest.mark.parametrize(("interval_s", "capacity"), [(0.0, 10), (-1.0, 10), (1.0, 0)])
def test_senseless_bounds_are_refused(interval_s: float, capacity: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Repeats(interval_s=interval_s, capacity=capacity)


def test_the_log_carries_the_number_of_swallowed_repeats() -> None:
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
    log.over("other")
    log.info("out of descriptors", key="other")
    assert capture.entries == [
        {"log_level": "warning", "event": "out of descriptors", "limit": 256},
        {"log_level": "warning", "event": "out of descriptors", "limit": 256, "suppressed": 9},
        {"log_level": "error", "event": "out of descriptors", "limit": 256},
        {"log_level": "info", "event": "out of descriptors"},
    ]
