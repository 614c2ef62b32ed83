"""The work queue: examples of client-go's tests, and a machine against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeproxy.kubernetes.client.token_bucket import TokenBucket
from kubeproxy.kubernetes.controller.workqueue import ItemBackoff, WorkQueue


def test_a_key_waits_once() -> None:
    queue = WorkQueue("q")
    for _ in range(3):
        queue.add("a", 0)
    queue.add("b", 0)
    assert [queue.take(0), queue.take(0), queue.take(0)] == ["a", "b", None]


def test_an_addition_during_the_work_gives_one_more_run() -> None:
    queue = WorkQueue("q")
    queue.add("a", 0)
    assert queue.take(0) == "a"
    queue.add("a", 1)
    queue.add("a", 2)
    assert queue.take(2) is None  # never by two workers at once
    queue.done("a", 3)
    assert queue.take(3) == "a"
    queue.done("a", 4)
    assert queue.take(4) is None


def test_of_several_delays_the_earliest_counts() -> None:
    queue = WorkQueue("q")
    queue.add_after("a", 10, 0)
    queue.add_after("a", 5, 0)
    queue.add_after("a", 20, 0)
    assert queue.next_due() == 5
    assert queue.take(4.9) is None
    assert queue.take(5) == "a"
    queue.done("a", 5)
    assert queue.next_due() is None
    assert queue.take(100) is None


def test_without_a_delay_it_is_there_at_once() -> None:
    queue = WorkQueue("q")
    queue.add_after("a", 0, 0)
    queue.add_after("b", -1, 0)
    assert (queue.take(0), queue.take(0)) == ("a", "b")


def test_back_off_of_one_key() -> None:
    queue = WorkQueue("q", bucket=TokenBucket(qps=0, burst=1))
    delays = [queue.add_rate_limited("a", 0) for _ in range(20)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[-1] == 1000
    assert queue.requeues("a") == 20
    queue.forget("a")
    assert queue.requeues("a") == 0
    assert queue.add_rate_limited("a", 0) == 0.005


def test_back_off_never_overflows() -> None:
    backoff = ItemBackoff()
    assert max(backoff.next("a") for _ in range(5000)) == 1000


def test_the_bucket_is_shared() -> None:
    queue = WorkQueue("q")
    delays = [queue.add_rate_limited(f"key-{number}", 0) for number in range(120)]
    assert delays[99] == 0.005
    assert delays[-1] == pytest.approx(2.0)  # 20 beyond the burst of 100, at 10 a second


def test_a_closed_queue_drains() -> None:
    queue = WorkQueue("q")
    queue.add("a", 0)
    queue.add_after("b", 1, 0)
    queue.close()
    queue.add("c", 0)
    queue.add_after("d", 1, 0)
    assert [queue.take(5), queue.take(5)] == ["a", None]


def test_counters() -> None:
    queue = WorkQueue("q")
    queue.add("a", 10)
    queue.add("a", 11)
    assert len(queue) == 1
    queue.take(13)
    assert queue.processing == 1
    assert queue.unfinished_s(15) == (2, 2)
    queue.done("a", 16)
    counters = queue.counters
    assert (counters.adds, counters.retries) == (1, 0)
    assert (counters.waited.seconds, counters.worked.seconds) == (3, 3)
    assert sum(counters.waited.counts) == sum(counters.worked.counts) == 1


KEYS = st.sampled_from("abcd")


class QueueMachine(RuleBasedStateMachine):
    """Against a model of lists and sets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue("q", bucket=TokenBucket(qps=0, burst=1))
        self.now = 0.0
        self.additions = 0
        self.order: list[str] = []
        self.dirty: set[str] = set()
        self.processing: set[str] = set()
        self.due: dict[str, tuple[float, int]] = {}
        """When each key is due; equal times in the order of their additions."""
        self.promised: set[str] = set()
        """Keys that were added and must still be handed out."""

    def _add(self, key: str) -> None:
        self.promised.add(key)
        if key not in self.dirty:
            self.dirty.add(key)
            if key not in self.processing:
                self.order.append(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key, self.now)
        self._add(key)

    @rule(key=KEYS, delay=st.integers(-1, 20))
    def add_after(self, key: str, delay: int) -> None:
        self.queue.add_after(key, delay, self.now)
        if delay <= 0:
            self._add(key)
        else:
            when = self.now + delay
            if key not in self.due or when < self.due[key][0]:
                self.additions += 1
                self.due[key] = (when, self.additions)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ready = sorted((due, key) for key, due in self.due.items() if due[0] <= self.now)
        before = set(self.order)
        for _, key in ready:
            del self.due[key]
            self._add(key)
        taken = self.queue.take(self.now)
        if taken is None:
            assert not self.order
            return
        assert taken not in self.processing
        assert taken == self.order[0] or (not before and taken in {key for _, key in ready})
        self.order.remove(taken)
        self.dirty.discard(taken)
        self.promised.discard(taken)
        self.processing.add(taken)

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        if not self.processing:
            return
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.queue.done(key, self.now)
        self.processing.remove(key)
        if key in self.dirty:
            self.order.append(key)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.processing == len(self.processing)
        waiting = [when for when, _ in self.due.values()]
        assert self.queue.next_due() == min(waiting, default=None)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.promised <= self.dirty


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
