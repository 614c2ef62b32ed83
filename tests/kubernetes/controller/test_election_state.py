"""The state machine of leader election: examples, and candidates that stop, start and lose requests."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeproxy.kubernetes.controller.election_state import LeaderElection, LeaseRecord, Step


def test_the_first_creates_the_lease() -> None:
    election = LeaderElection("a")
    assert election.next_step(None, 0) is Step.CREATE
    record = election.proposal(1000)
    assert record == LeaseRecord(holder="a", duration_s=15, acquired=1000, renewed=1000, transitions=0)
    election.written(record, asked_at=0)
    assert election.leading(9.9)
    assert not election.leading(10)
    assert election.lost(10)


def test_another_waits_by_its_own_clock() -> None:
    record = LeaseRecord(holder="a", renewed=5)  # whatever a's clock says
    election = LeaderElection("b")
    assert election.next_step(record, 100) is Step.WAIT
    assert election.next_step(record, 114.9) is Step.WAIT
    assert election.next_step(LeaseRecord(holder="a", renewed=6), 114.9) is Step.WAIT
    assert election.next_step(LeaseRecord(holder="a", renewed=6), 129) is Step.WAIT
    assert election.next_step(LeaseRecord(holder="a", renewed=6), 129.9) is Step.TAKE
    taken = election.proposal(2000)
    assert (taken.holder, taken.transitions, taken.acquired) == ("b", 1, 2000)


def test_a_duration_is_believed_up_to_a_bound() -> None:
    longer = LeaderElection("b")
    assert longer.next_step(LeaseRecord(holder="a", duration_s=60), 0) is Step.WAIT
    assert longer.next_step(LeaseRecord(holder="a", duration_s=60), 59) is Step.WAIT
    assert longer.next_step(LeaseRecord(holder="a", duration_s=60), 60) is Step.TAKE
    forged = LeaseRecord(holder="stolen", duration_s=2147483647, renewed=4e9)
    election = LeaderElection("b")
    assert election.next_step(forged, 0) is Step.WAIT
    assert election.next_step(forged, 149) is Step.WAIT
    assert election.next_step(forged, 150) is Step.TAKE


def test_renewing_keeps_what_was_acquired() -> None:
    election = LeaderElection("a")
    mine = LeaseRecord(holder="a", acquired=5, renewed=5, transitions=3)
    assert election.next_step(mine, 0) is Step.RENEW  # also after a restart under the same identity
    assert election.proposal(9) == LeaseRecord(holder="a", acquired=5, renewed=9, transitions=3)


def test_a_released_lease_is_taken_at_once() -> None:
    election = LeaderElection("a")
    election.written(LeaseRecord(holder="a", transitions=1), asked_at=0)
    released = election.release(50)
    assert released is not None
    assert (released.holder, released.duration_s) == ("", 1)
    election.resign()
    assert not election.leading(0)
    assert election.release(50) is None
    assert LeaderElection("b").next_step(released, 0) is Step.TAKE


def test_a_leader_that_was_followed_is_lost() -> None:
    election = LeaderElection("a")
    election.written(LeaseRecord(holder="a"), asked_at=0)
    assert election.next_step(LeaseRecord(holder="b"), 1) is Step.WAIT
    assert not election.leading(1)
    assert election.lost(1)


@pytest.mark.parametrize(("lease", "renew", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 2.4, 2)])
def test_durations_that_cannot_work(lease: float, renew: float, retry: float) -> None:
    with pytest.raises(ValueError):
        LeaderElection("a", lease_s=lease, renew_s=renew, retry_s=retry)


class ElectionMachine(RuleBasedStateMachine):
    """Three candidates, one server. A write fails if the record changed since it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.server: LeaseRecord | None = None
        self.version = 0
        self.candidates = [LeaderElection(name) for name in "abc"]
        self.seen: list[tuple[int, Step, LeaseRecord, float] | None] = [None] * 3

    @rule(seconds=st.floats(0.1, 16))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(index=st.integers(0, 2))
    def read(self, index: int) -> None:
        candidate = self.candidates[index]
        asked_at = self.now
        step = candidate.next_step(self.server, self.now)
        self.seen[index] = (self.version, step, candidate.proposal(self.now * 1000 + index), asked_at)

    @rule(index=st.integers(0, 2), answer=st.booleans())
    def write(self, index: int, answer: bool) -> None:
        """The request may arrive long after the decision, or its answer be lost."""
        pending, self.seen[index] = self.seen[index], None
        if pending is None or pending[1] is Step.WAIT or pending[0] != self.version:
            return
        _, _, record, asked_at = pending
        self.server = record
        self.version += 1
        if answer:
            self.candidates[index].written(record, asked_at=asked_at)

    @rule(index=st.integers(0, 2))
    def restart(self, index: int) -> None:
        self.candidates[index] = LeaderElection("abc"[index] + "-again")
        self.seen[index] = None

    @invariant()
    def one_leads_at_most(self) -> None:
        assert sum(candidate.leading(self.now) for candidate in self.candidates) <= 1


TestElectionMachine = ElectionMachine.TestCase
TestElectionMachine.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
