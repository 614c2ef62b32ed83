"""The times of netfilter transactions."""

from __future__ import annotations

import math

import pytest

from kubeproxy.proxier.sync_schedule import QUICK_ROUNDS, RETRY_JITTER, RETRY_LIMIT_S, Backoff, Periods, Schedule


def even() -> float:
    """No chance at all."""
    return 0.0


class TestBackoff:
    def test_delays_double_up_to_a_limit(self) -> None:
        backoff = Backoff(even)
        delays = []
        for _ in range(9):
            backoff.failed(now=100.0)
            delays.append(backoff.retry_at - 100.0)
        assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]

    def test_delays_never_overflow_nor_exceed_the_limit(self) -> None:
        backoff = Backoff(lambda: 1.0)
        for _ in range(5000):
            backoff.failed(now=0.0)
        assert backoff.retry_at == RETRY_LIMIT_S * (1 + RETRY_JITTER)

    def test_success_resets_it(self) -> None:
        backoff = Backoff(even)
        for _ in range(5):
            backoff.failed(now=0.0)
        backoff.reset()
        assert (backoff.retry_at, backoff.failures) == (math.inf, 0)
        backoff.failed(now=0.0)
        assert backoff.retry_at == 0.5


class TestSchedule:
    def schedule(self, *, at: float = 100.0, full: bool = True) -> Schedule:
        """A schedule after a last transaction that succeeded at that time."""
        schedule = Schedule(Periods(min_sync_s=1.0, sync_s=30.0), even)
        schedule.started(110.0, full=False)
        schedule.succeeded(at, full=full)
        return schedule

    def test_the_first_is_at_once_and_full(self) -> None:
        schedule = Schedule(Periods(), even)
        assert schedule.next_at(pending=False, new=False) == -math.inf
        assert schedule.full_due(0.0)

    @pytest.mark.parametrize(("pending", "expected"), [(True, 101.0), (False, 130.0)])
    def test_changes_are_apart_and_full_syncs_regular(self, pending: bool, expected: float) -> None:
        schedule = self.schedule()
        for _ in range(QUICK_ROUNDS - 1):
            schedule.succeeded(100.0, full=True)
        assert schedule.next_at(pending=pending, new=pending) == expected

    def test_a_few_rounds_are_quick_and_each_period_allows_one_more(self) -> None:
        """Point 10: a new Service and its endpoints are some changes, milliseconds apart."""
        schedule, now = self.schedule(), 120.0
        for _ in range(QUICK_ROUNDS):
            assert schedule.next_at(pending=True, new=True) <= now
            schedule.succeeded(now, full=False)
        assert schedule.next_at(pending=True, new=True) == now + 1.0
        now += 2.5
        for _ in range(2):
            assert schedule.next_at(pending=True, new=True) <= now
            schedule.succeeded(now, full=False)
        assert schedule.next_at(pending=True, new=True) == now + 0.5
        now += 5.0
        for _ in range(QUICK_ROUNDS):
            assert schedule.next_at(pending=True, new=True) <= now
            schedule.succeeded(now, full=False)
        assert schedule.next_at(pending=True, new=True) == now + 1.0

    @pytest.mark.parametrize("every_s", [0.001, 0.3, 0.999])
    @pytest.mark.parametrize("fails", [False, True])
    def test_a_storm_is_limited_to_the_period_on_average(self, every_s: float, fails: bool) -> None:
        schedule, rounds, now = self.schedule(at=0.0), 0, 0.0
        schedule.periods = Periods(sync_s=1e9)
        while now < 60.0:
            if schedule.next_at(pending=True, new=True) <= now:
                schedule.started(now, full=False)
                schedule.failed(now) if fails else schedule.succeeded(now, full=False)
                rounds += 1
            now += every_s
        assert 60 <= rounds <= 60 + QUICK_ROUNDS

    def test_a_slow_transaction_does_not_shorten_the_next_period(self) -> None:
        schedule, now, ended = self.schedule(at=0.0), 0.0, 0
        while now < 100.0:
            now = max(now, schedule.next_at(pending=True, new=True)) + 3.0  # a transaction of three seconds
            schedule.succeeded(now, full=False)
            ended += 1
        assert 25 <= ended <= 34

    def test_a_shorter_period_counts_at_once(self) -> None:
        schedule = self.schedule()
        for _ in range(20):
            schedule.succeeded(100.0, full=False)
        schedule.periods = Periods(min_sync_s=0.01)
        assert schedule.next_at(pending=True, new=True) == 100.01

    def test_only_a_full_sync_counts_as_one(self) -> None:
        schedule = self.schedule()
        schedule.started(110.0, full=False)
        schedule.succeeded(120.0, full=False)
        assert schedule.next_at(pending=False, new=False) == 130.0
        assert not schedule.full_due(129.0)
        assert schedule.full_due(130.0)

    def test_a_failure_is_retried_with_backoff_and_full(self) -> None:
        schedule = self.schedule()
        expected = [110.5, 111.0, 112.0]
        for retry_at in expected:
            schedule.started(110.0, full=False)
            schedule.failed(110.0)
            assert schedule.next_at(pending=True, new=False) == retry_at
        assert schedule.full_due(110.0)
        assert schedule.failures == 3

    def test_a_new_change_after_failures_may_be_the_cure(self) -> None:
        schedule = self.schedule()
        for _ in range(7):
            schedule.failed(110.0)
        assert schedule.next_at(pending=True, new=False) == 140.0
        assert schedule.next_at(pending=True, new=True) == 111.0

    def test_foreign_changes_after_our_own_are_noticed(self) -> None:
        schedule = self.schedule()
        for _ in range(7):
            schedule.failed(110.0)
        schedule.foreign_change(111.0)
        assert schedule.next_at(pending=True, new=False) == 111.0
        schedule.started(111.0, full=True)
        schedule.failed(111.0)
        assert schedule.next_at(pending=True, new=False) == 141.0
        schedule.foreign_change(111.1)
        assert schedule.next_at(pending=True, new=False) == 112.0

    def test_an_unknown_kernel_state_makes_one_full_sync_due_at_once(self) -> None:
        schedule = self.schedule()
        for _ in range(7):
            schedule.failed(110.0)
        schedule.require_full_sync()
        assert schedule.next_at(pending=False, new=False) <= 110.0
        assert schedule.full_due(110.0)
        schedule.started(110.0, full=True)
        schedule.failed(110.0)
        assert schedule.next_at(pending=True, new=False) == 140.0
        schedule.succeeded(140.0, full=True)
        assert schedule.next_at(pending=False, new=False) == 170.0

    def test_success_ends_retries(self) -> None:
        schedule = self.schedule()
        schedule.failed(110.0)
        schedule.succeeded(111.0, full=True)
        assert schedule.next_at(pending=False, new=False) == 141.0

    def test_after_a_cancelled_transaction_the_kernel_is_unknown(self) -> None:
        schedule = self.schedule()
        schedule.foreign_change(110.0)
        schedule.started(110.0, full=True)
        assert schedule.full_due(110.0)
        assert schedule.next_at(pending=False, new=False) <= 110.0

    def test_foreign_changes_are_undone_at_once_and_repeated_ones_later(self) -> None:
        schedule, now = self.schedule(), 101.0
        schedule.periods = Periods(sync_s=1000.0)
        for delay_s in (0.0, 1.0, 2.0, 2.0, 2.0):
            assert not schedule.full_due(now)
            schedule.foreign_change(now)
            schedule.foreign_change(now + 0.1)
            assert schedule.next_at(pending=False, new=False) == now + delay_s
            assert schedule.full_due(now) is (delay_s == 0.0)
            now += delay_s
            assert schedule.full_due(now)
            schedule.started(now, full=True)
            schedule.succeeded(now, full=True)
        # After a while without any it is forgotten.
        schedule.foreign_change(now + 30.0)
        assert schedule.full_due(now + 30.0)

    def test_a_change_during_a_full_sync_is_made_after_it(self) -> None:
        schedule = self.schedule()
        schedule.foreign_change(101.0)
        schedule.started(101.0, full=True)
        schedule.foreign_change(101.1)
        schedule.succeeded(101.2, full=True)
        assert schedule.next_at(pending=False, new=False) == 102.0

    def test_periods_change_at_run_time(self) -> None:
        schedule = self.schedule()
        schedule.periods = Periods(min_sync_s=0.0, sync_s=10.0)
        assert schedule.next_at(pending=True, new=True) == 100.0
        assert schedule.next_at(pending=False, new=False) == 110.0
