"""Round robin, ejection and affinity, by example and against a naive model."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeproxy.dataplane.balancing import affinity
from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.messages import Binding
from kubeproxy.model import Address, Balancing, Scheduler, Target


def target(number: int) -> Target:
    return Target(Address(f"10.0.{number // 256}.{number % 256}"), 8080)


def targets(*numbers: int) -> tuple[Target, ...]:
    return tuple(target(number) for number in numbers)


@pytest.fixture
def make() -> Callable[..., Balancer]:
    def make_balancer(*numbers: int, affinity_timeout_s: float | None = None) -> Balancer:
        balancer = Balancer(rng=random.Random(1))
        balancer.update(targets(*numbers), affinity_timeout_s)
        return balancer

    return make_balancer


Make = Callable[..., Balancer]


def test_without_endpoints_there_is_none_to_pick(make: Make) -> None:
    assert make().pick("c", 0.0) is None


def test_a_single_endpoint_is_always_picked(make: Make) -> None:
    balancer = make(1)
    assert [balancer.pick("c", 0.0) for _ in range(4)] == [target(1)] * 4


def test_every_round_has_every_endpoint_in_the_same_order(make: Make) -> None:
    balancer = make(1, 2, 3)
    first = [balancer.pick("c", 0.0) for _ in range(3)]
    assert set(first) == set(targets(1, 2, 3))
    assert [balancer.pick("c", 0.0) for _ in range(6)] == first * 2


def test_the_first_order_differs_between_proxies() -> None:
    def order(seed: int) -> object:
        balancer = Balancer(rng=random.Random(seed))
        balancer.update(targets(*range(10)), None)
        return balancer.endpoints

    assert len({order(seed) for seed in range(20)}) > 10


def test_endpoints_take_little_memory_until_the_first_client(make: Make) -> None:
    def bytes_per_endpoint() -> float:
        return (tracemalloc.get_traced_memory()[0] - before) / 1000

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        balancer = make(*range(1000))
        assert bytes_per_endpoint() < 30
        assert balancer.pick("c", 0.0) in targets(*range(1000))
        assert bytes_per_endpoint() > 100
    finally:
        tracemalloc.stop()


def test_the_last_endpoints_and_balancing_before_the_first_client_count(make: Make) -> None:
    balancer = make(1, 2, 3)
    balancer.update(targets(4, 5), None, Balancing(Scheduler.RANDOM, weights=(1, 99)))
    assert {balancer.pick("c", 0.0) for _ in range(400)} == set(targets(4, 5))
    assert len(balancer) == 2


def test_an_equal_set_changes_nothing(make: Make) -> None:
    balancer = make(1, 2, 3)
    before = balancer.endpoints
    balancer.update(targets(3, 2, 1), None)
    assert balancer.endpoints == before


def test_a_change_keeps_the_position_and_new_endpoints_come_last(make: Make) -> None:
    balancer = make(1, 2, 3, 4)
    balancer.pick("c", 0.0)
    removed, *others = balancer.endpoints
    balancer.update([target(9), *sorted(others)], None)
    assert removed not in balancer.endpoints
    assert list(balancer.endpoints) == [*others, target(9)]


def test_endpoints_to_avoid_are_skipped(make: Make) -> None:
    balancer = make(1, 2, 3)
    assert {balancer.pick("c", 0.0, avoid=targets(1, 3)) for _ in range(5)} == {target(2)}
    assert balancer.pick("c", 0.0, avoid=targets(1, 2, 3)) is None


def test_affinity_binds_each_client_to_its_endpoint(make: Make) -> None:
    balancer = make(1, 2, 3, affinity_timeout_s=10)
    mine = {client: balancer.pick(client, 0.0) for client in "abc"}
    assert set(mine.values()) == set(targets(1, 2, 3))
    for now in range(1, 40):
        assert {client: balancer.pick(client, float(now)) for client in "abc"} == mine


def test_affinity_ends_after_its_timeout_without_connections(make: Make) -> None:
    balancer = make(1, 2, affinity_timeout_s=10)
    first = balancer.pick("a", 0.0)
    assert balancer.pick("a", 9.9) == first
    assert balancer.pick("a", 19.8) == first
    assert balancer.pick("a", 29.8) != first


def test_a_new_timeout_holds_from_now_on(make: Make) -> None:
    balancer = make(1, 2, affinity_timeout_s=100)
    first = balancer.pick("a", 0.0)
    balancer.update(targets(1, 2), 5)
    assert balancer.pick("a", 6.0) != first


def test_affinity_survives_changes_of_other_endpoints(make: Make) -> None:
    balancer = make(1, 2, 3, affinity_timeout_s=100)
    mine = balancer.pick("a", 0.0)
    assert mine is not None
    balancer.update([mine, target(7), target(8)], 100)
    assert [balancer.pick("a", 1.0) for _ in range(3)] == [mine] * 3


def test_a_client_of_a_removed_endpoint_is_bound_to_another(make: Make) -> None:
    balancer = make(1, 2, 3, affinity_timeout_s=100)
    mine = balancer.pick("a", 0.0)
    balancer.update([other for other in targets(1, 2, 3) if other != mine], 100)
    second = balancer.pick("a", 1.0)
    assert second != mine
    assert balancer.pick("a", 2.0) == second


def test_affinity_binds_to_the_next_endpoint_after_a_silent_one(make: Make) -> None:
    balancer = make(1, 2, 3, affinity_timeout_s=100)
    silent = balancer.pick("a", 0.0)
    assert silent is not None
    second = balancer.pick("a", 0.0, avoid=[silent])
    assert second != silent
    assert balancer.pick("a", 1.0) == second


def test_restored_clients_keep_their_endpoints_if_these_exist(make: Make) -> None:
    balancer = make(1, 2, 3, affinity_timeout_s=10)
    balancer.pick("here", 100.0)
    mine = balancer.pick("here", 100.0)
    balancer.restore_bindings(
        [Binding(client, target(number), 5.0) for client, number in (("a", 3), ("b", 9), ("c", 1), ("here", 9))], 100.0
    )
    assert [balancer.pick(client, 101.0) for client in ("a", "c", "here")] == [target(3), target(1), mine]
    assert balancer.affinity_entries == 3, "the binding to an unknown endpoint is dropped"
    balancer.update(targets(1, 2), 10)
    assert balancer.pick("a", 102.0) != target(3)


def test_restored_clients_get_another_endpoint_while_theirs_is_ejected(make: Make) -> None:
    balancer = make(1, 2, affinity_timeout_s=10)
    balancer.failed(target(1), 100.0, "refused")
    balancer.restore_bindings([Binding("a", target(1), 5.0)], 100.0)
    assert balancer.pick("a", 100.5) == target(2)


def test_affinity_binds_to_the_endpoint_that_answered_first(make: Make) -> None:
    balancer = make(1, 2, affinity_timeout_s=100)
    slow = balancer.pick("a", 0.0)
    assert slow is not None
    balancer.pick("a", 0.0, avoid=[slow])
    balancer.settle("a", slow, 0.0)
    assert balancer.pick("a", 1.0) == slow


def test_the_ejection_time_doubles_with_each_failure(make: Make) -> None:
    balancer = make(1, 2, 3)
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        for _ in range(50):
            balancer.failed(target(1), now, "timeout")
        before = {balancer.pick("c", now + wait - 0.01) for _ in range(9)}
        assert before == set(targets(2, 3))
        now += wait
        # One probe at a time.
        assert [balancer.pick("c", now) for _ in range(9)].count(target(1)) == 1
    balancer.answered(target(1))
    assert [balancer.pick("c", now) for _ in range(9)].count(target(1)) == 3


def test_a_probe_without_a_result_is_repeated(make: Make) -> None:
    balancer = make(1, 2)
    balancer.failed(target(1), 0.0, "timeout")
    assert target(1) in {balancer.pick("c", 1.0) for _ in range(4)}
    assert target(1) not in {balancer.pick("c", 5.9) for _ in range(4)}
    assert target(1) in {balancer.pick("c", 6.0) for _ in range(4)}


@pytest.mark.parametrize("affinity_timeout_s", [None, 1000.0])
def test_with_probes_beside_no_client_gets_an_ejected_endpoint(affinity_timeout_s: float | None) -> None:
    balancer = Balancer(rng=random.Random(1), probes_beside=True)
    balancer.update(targets(1, 2, 3), affinity_timeout_s)
    clients = [f"client-{number}" for number in range(6)]
    assert {balancer.pick(client, 0.0) for client in clients} == set(targets(1, 2, 3))
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        for _ in range(50):
            balancer.failed(target(1), now, "timeout")
        assert balancer.due(now + wait - 0.01) is None
        now += wait
        assert {balancer.pick(client, now) for client in clients} == set(targets(2, 3))
        # One probe at a time.
        assert [balancer.due(now) for _ in range(3)] == [target(1), None, None]
        assert {balancer.pick(client, now) for client in clients} == set(targets(2, 3))
    balancer.answered(target(1))
    assert {balancer.pick(f"another-{number}", now) for number in range(3)} == set(targets(1, 2, 3))


def test_with_probes_beside_all_are_tried_if_all_are_ejected() -> None:
    balancer = Balancer(rng=random.Random(1), probes_beside=True)
    balancer.update(targets(1, 2), None)
    for number in (1, 2):
        balancer.failed(target(number), 0.0, "timeout")
    for now in (0.1, 1.1):
        assert {balancer.pick("c", now) for _ in range(4)} == set(targets(1, 2))
    assert {balancer.due(1.1), balancer.due(1.1)} == set(targets(1, 2))


def test_if_all_are_ejected_all_are_tried(make: Make) -> None:
    balancer = make(1, 2, 3)
    for number in (1, 2, 3):
        balancer.failed(target(number), 0.0, "timeout")
    assert {balancer.pick("c", 0.1) for _ in range(6)} == set(targets(1, 2, 3))
    assert balancer.pick("c", 0.1, avoid=targets(1, 2)) == target(3)


@pytest.mark.parametrize("probes_beside", [False, True])
def test_if_all_are_ejected_the_one_with_fewest_failures_comes_first(probes_beside: bool) -> None:
    balancer = Balancer(rng=random.Random(1), probes_beside=probes_beside)
    balancer.update(targets(1, 2, 3), None)
    for number in (1, 2):
        balancer.failed(target(number), 0.0, "timeout")
        assert balancer.due(1.0) == target(number)
        balancer.failed(target(number), 1.0, "timeout")
    balancer.failed(target(3), 1.1, "timeout")
    assert [balancer.pick("c", 1.2) for _ in range(3)] == [target(3)] * 3
    others = [balancer.pick("c", 1.2, avoid=targets(3)) for _ in range(4)]
    assert sorted(others, key=str) == sorted(targets(1, 2) * 2, key=str), "in turn"
    assert balancer.pick("c", 1.2, avoid=targets(1, 2, 3)) is None


def test_an_endpoint_that_comes_back_is_not_ejected(make: Make) -> None:
    balancer = make(1, 2)
    balancer.failed(target(1), 0.0, "timeout")
    balancer.update(targets(2), None)
    balancer.update(targets(1, 2), None)
    assert target(1) in {balancer.pick("c", 0.1) for _ in range(4)}
    balancer.failed(target(9), 0.0, "timeout")
    assert set(balancer.ejected) == set()


def test_affinity_moves_the_client_while_its_endpoint_is_ejected(make: Make) -> None:
    balancer = make(1, 2, affinity_timeout_s=100)
    mine = balancer.pick("a", 0.0)
    assert mine is not None
    balancer.failed(mine, 0.0, "timeout")
    other = balancer.pick("a", 0.1)
    assert other != mine
    assert balancer.pick("a", 50.0) == other


def test_affinity_entries_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "AFFINITY_ENTRIES", 100)
    balancer = make(1, 2, affinity_timeout_s=1000)
    for number in range(1000):
        balancer.pick(f"client-{number}", float(number) / 1000)
    assert balancer.affinity_entries == 100
    balancer.pick("late", 10_000.0)
    assert balancer.affinity_entries == 1


@given(
    endpoints=st.sets(st.integers(0, 30), min_size=1, max_size=20),
    picks=st.integers(1, 200),
    seed=st.integers(),
)
def test_the_spread_differs_by_at_most_one(endpoints: set[int], picks: int, seed: int) -> None:
    balancer = Balancer(rng=random.Random(seed))
    balancer.update(targets(*endpoints), None)
    counts = Counter(balancer.pick("c", 0.0) for _ in range(picks))
    spread = [counts[target(number)] for number in endpoints]
    assert max(spread) - min(spread) <= 1


class AffinityMachine(RuleBasedStateMachine):
    """The balancer beside a model that keeps all bindings for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.balancer = Balancer(rng=random.Random(3))
        self.members: set[Target] = set()
        self.timeout_s: float = 10.0
        self.bound: dict[str, tuple[Target, float]] = {}
        self.now = 0.0

    @rule(numbers=st.sets(st.integers(0, 5)), timeout_s=st.sampled_from([5.0, 10.0, 20.0]))
    def update(self, numbers: set[int], timeout_s: float) -> None:
        self.members = set(targets(*numbers))
        self.timeout_s = timeout_s
        self.balancer.update(sorted(self.members), timeout_s)

    @rule(seconds=st.floats(0.0, 15.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.members)
    @rule(client=st.sampled_from("abcd"), avoid=st.sets(st.integers(0, 5), max_size=2))
    def pick(self, client: str, avoid: set[int]) -> None:
        avoided = set(targets(*avoid))
        picked = self.balancer.pick(client, self.now, avoided)
        if not self.members - avoided:
            assert picked is None
            return
        assert picked in self.members - avoided
        mine, last_used = self.bound.get(client, (None, 0.0))
        # A shorter timeout may remove an entry that a longer one afterwards would have kept: so in this direction only.
        if self.now - last_used < 5.0 and mine in self.members - avoided:
            assert picked == mine
        assert picked is not None
        self.bound[client] = (picked, self.now)

    @invariant()
    def remembers_no_more_than_its_clients(self) -> None:
        assert self.balancer.affinity_entries <= len(self.bound)


TestAffinity = AffinityMachine.TestCase
TestAffinity.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
