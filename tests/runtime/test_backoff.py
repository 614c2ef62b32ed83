"""Delays between tries."""

from __future__ import annotations

from random import Random

from kubeproxy.runtime.backoff import DecorrelatedJitter, DoublingBackoff


def test_delays_double_up_to_the_limit() -> None:
    backoff = DoublingBackoff(first_s=0.5, limit_s=30.0)
    assert [backoff.next() for _ in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_many_failures_do_not_overflow() -> None:
    backoff = DoublingBackoff(first_s=0.5, limit_s=30.0)
    assert [backoff.next() for _ in range(5000)][-1] == 30.0


def test_doubling_starts_again_after_a_reset() -> None:
    backoff = DoublingBackoff(first_s=0.5, limit_s=30.0)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() == 0.5


def test_jitter_stays_between_its_bounds() -> None:
    backoff = DecorrelatedJitter(base_s=1, cap_s=10, random=Random(3))
    delays = [backoff.next() for _ in range(1000)]
    assert min(delays) >= 1
    assert max(delays) <= 10
    backoff.reset()
    assert backoff.next() <= 3


def test_jitter_rarely_draws_the_cap() -> None:
    backoff = DecorrelatedJitter(base_s=1, cap_s=10, random=Random(3))
    delays = [round(backoff.next(), 1) for _ in range(1000)]
    assert delays.count(10.0) < 50
