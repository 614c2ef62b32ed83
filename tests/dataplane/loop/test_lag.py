"""Lag: the longest turn of the last minute."""

from __future__ import annotations

import pytest

from kubeproxy.dataplane.loop.lag import STEP_S, STEPS, Lag
from kubeproxy.dataplane.loop.reactor import Reactor
from tests.support.clock import Clock


def turn_of(reactor: Reactor, clock: Clock, seconds: float) -> None:
    def work() -> None:
        clock.now += seconds

    reactor.again(work)
    reactor.turn()


def test_reading_does_not_reset_the_lag(reactor: Reactor, clock: Clock) -> None:
    lag = Lag(reactor)
    assert lag.longest_s() == 0.0
    for seconds in (0.1, 0.7, 0.2):
        turn_of(reactor, clock, seconds)
        lag.longest_s()
    assert [lag.longest_s() for _ in range(3)] == [pytest.approx(0.7)] * 3


def test_turns_older_than_a_minute_do_not_count(reactor: Reactor, clock: Clock) -> None:
    lag = Lag(reactor)
    turn_of(reactor, clock, 0.7)
    for step in range(1, STEPS + 2):
        assert lag.longest_s() == pytest.approx(0.7), step
        clock.now += STEP_S
        reactor.turn()
    turn_of(reactor, clock, 0.2)
    assert lag.longest_s() == pytest.approx(0.2)
