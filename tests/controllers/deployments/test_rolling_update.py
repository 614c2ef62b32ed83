"""The steps of a rolling update, after upstream's rolling_test tables, and the invariants of every rollout."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeproxy.controllers import surge
from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments import rolling_update
from kubeproxy.controllers.deployments.rolling_update import Scale
from tests.controllers.builders import deployment, replica_set


@pytest.mark.parametrize(
    ("replicas", "max_surge", "old", "new", "expected"),
    [(10, 0, 10, 0, None), (10, 2, 10, 0, 2), (10, 2, 5, 0, 7), (10, 2, 10, 2, None), (10, 2, 2, 11, 10)],
)
def test_the_new_replica_set_grows(replicas: int, max_surge: int, old: int, new: int, expected: int | None) -> None:
    wanted = deployment(replicas, surge=max_surge)
    assert rolling_update.scale_new(wanted, replica_set("new", new), [replica_set("old", old)]) == expected


@pytest.mark.parametrize(
    ("unavailable", "old", "ready_old", "new", "ready_new", "expected"),
    [
        (0, 10, 10, 0, 0, 9),  # both 0: one may be unavailable
        (2, 10, 10, 0, 0, 8),
        (2, 10, 9, 0, 0, 8),
        (2, 10, 8, 0, 0, 8),
        (2, 8, 8, 2, 0, None),
    ],
)
def test_old_replica_sets_shrink(
    unavailable: int, old: int, ready_old: int, new: int, ready_new: int, expected: int | None
) -> None:
    wanted = deployment(10, surge=0, unavailable=unavailable)
    sets = [replica_set("old", old, available=ready_old)]
    newest = replica_set("new", new, available=ready_new)
    sizes = _shrink(wanted, newest, sets)
    assert sizes == ({"old": old} if expected is None else {"old": expected})


def _shrink(wanted: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> dict[str, int]:
    budget = rolling_update.may_shrink_old(wanted, new, old)
    if budget:
        unhealthy = rolling_update.cleanup_unhealthy(old, budget)
        assert unhealthy is not None
        old = _apply(old, unhealthy)
        old = _apply(old, rolling_update.scale_down_old(wanted, new, old))
    return {each.metadata.name: each.spec.replicas for each in old}


def _apply(sets: list[ReplicaSet], scales: list[Scale]) -> list[ReplicaSet]:
    sizes = {scale.replica_set.metadata.name: scale.replicas for scale in scales}
    return [
        msgspec.structs.replace(
            each,
            spec=msgspec.structs.replace(each.spec, replicas=sizes.get(each.metadata.name, each.spec.replicas)),
        )
        for each in sets
    ]


@pytest.mark.parametrize(("available", "budget", "gone"), [(8, 1, 1), (8, 3, 2), (8, 0, 0), (10, 3, 0), (0, 4, 4)])
def test_unavailable_pods_go_first(available: int, budget: int, gone: int) -> None:
    scales = rolling_update.cleanup_unhealthy([replica_set("old", 10, available=available)], budget)
    assert scales is not None
    assert -sum(scale.change for scale in scales) == gone


def test_a_status_behind_its_spec_stops_the_cleanup() -> None:
    assert rolling_update.cleanup_unhealthy([replica_set("old", 5, available=8)], 3) is None


def test_the_oldest_set_is_cleaned_up_first() -> None:
    sets = [replica_set("younger", 4, available=0, age=10), replica_set("older", 3, available=1, age=20)]
    scales = rolling_update.cleanup_unhealthy(sets, 4)
    assert scales is not None
    assert [(scale.replica_set.metadata.name, scale.replicas) for scale in scales] == [("older", 1), ("younger", 2)]


@pytest.mark.parametrize(
    ("unavailable", "old", "available", "expected"),
    [(0, 10, 10, 9), (2, 10, 10, 8), (2, 10, 8, None), (2, 10, 1, None), (2, 0, 10, None)],
)
def test_available_pods_allow_old_ones_to_go(unavailable: int, old: int, available: int, expected: int | None) -> None:
    wanted = deployment(10, surge=0, unavailable=unavailable)
    scales = rolling_update.scale_down_old(wanted, None, [replica_set("old", old, available=available)])
    assert [scale.replicas for scale in scales] == ([] if expected is None else [expected])


def _step(wanted: Deployment, sets: dict[str, list[int]]) -> bool:
    """One sync as `DeploymentSync` makes it, on [wanted, available]; whether anything was scaled."""
    new = replica_set("new", sets["new"][0], available=sets["new"][1], age=1)
    old = [
        replica_set(name, size, available=available, age=100 - index)
        for index, (name, (size, available)) in enumerate(sets.items())
        if name != "new"
    ]
    size = rolling_update.scale_new(wanted, new, old)
    if size is not None:
        sets["new"][0] = size
        return True
    budget = rolling_update.may_shrink_old(wanted, new, old)
    if not budget:
        return False
    unhealthy = rolling_update.cleanup_unhealthy(old, budget)
    if unhealthy is None:
        return False
    old = _apply(old, unhealthy)
    down = rolling_update.scale_down_old(wanted, new, old)
    for scale in (*unhealthy, *down):
        sets[scale.replica_set.metadata.name][0] = scale.replicas
    return any(scale.change for scale in (*unhealthy, *down))


def _trace(wanted: Deployment, old: int) -> list[tuple[int, int]]:
    """new/old sizes, pods becoming available and disappearing whenever nothing is to be scaled."""
    sets = {"old": [old, old], "new": [0, 0]}
    seen = []
    for _ in range(200):
        if _step(wanted, sets):
            seen.append((sets["new"][0], sets["old"][0]))
            sets["old"][1] = min(sets["old"][1], sets["old"][0])
        elif sets["new"][1] != sets["new"][0]:
            sets["new"][1] = sets["new"][0]
        else:
            return seen
    raise AssertionError(f"it never ends: {seen[-5:]}")


@pytest.mark.parametrize(
    ("replicas", "max_surge", "unavailable", "expected"),
    [
        (10, 3, 2, [(3, 10), (3, 8), (5, 8), (5, 3), (10, 3), (10, 0)]),
        (4, "25%", "25%", [(1, 4), (1, 3), (2, 3), (2, 1), (4, 1), (4, 0)]),
        (3, "25%", "25%", [(1, 3), (1, 2), (2, 2), (2, 1), (3, 1), (3, 0)]),
        (1, "25%", "25%", [(1, 1), (1, 0)]),
    ],
)
def test_worked_traces(
    replicas: int, max_surge: int | str, unavailable: int | str, expected: list[tuple[int, int]]
) -> None:
    assert _trace(deployment(replicas, surge=max_surge, unavailable=unavailable), replicas) == expected


def test_a_crash_loop_stops_and_its_rollback_removes_the_bad_pods_first() -> None:
    wanted = deployment(10, surge=3, unavailable=2)
    sets = {"old": [10, 10], "new": [0, 0]}
    while _step(wanted, sets):
        sets["old"][1] = min(sets["old"][1], sets["old"][0])
    assert sets == {"old": [8, 8], "new": [5, 0]}
    back = {"bad": [5, 0], "new": [8, 8]}  # the former old set is the new one again
    assert _step(wanted, back)
    assert back == {"bad": [0, 0], "new": [8, 8]}
    assert _step(wanted, back)
    assert back == {"bad": [0, 0], "new": [10, 8]}


@given(replicas=st.integers(0, 60), grow=st.integers(0, 60), shrink=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_every_rollout_ends(replicas: int, grow: int, shrink: int) -> None:
    wanted = deployment(replicas, surge=grow, unavailable=min(shrink, replicas))
    trace = _trace(wanted, replicas)
    assert not trace or trace[-1] == (replicas, 0)


class RollingMachine(RuleBasedStateMachine):
    """Pods come, become available and fail in any order; the template changes in the middle.

    Each ReplicaSet is [wanted, available]; the world lets `available` follow `wanted` by single pods.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted = deployment(0)
        self.sets: dict[str, list[int]] = {"new": [0, 0]}
        self.count = 0
        self.harmed = True
        self.limit = 0

    @rule(replicas=st.integers(1, 12), grow=st.integers(0, 6), shrink=st.integers(0, 6))
    @precondition(lambda self: self.count == 0)
    def begin(self, replicas: int, grow: int, shrink: int) -> None:
        self.wanted = deployment(replicas, surge=grow, unavailable=shrink)
        self.sets = {"new": [replicas, replicas]}
        self.count = 1
        self.harmed = False
        self.limit = replicas + surge.max_surge(self.wanted)

    @rule()
    @precondition(lambda self: 0 < self.count < 5)
    def change_template(self) -> None:
        self.count += 1
        self.sets = {f"old{self.count}" if name == "new" else name: state for name, state in self.sets.items()}
        self.sets["new"] = [0, 0]

    @rule()
    @precondition(lambda self: self.count > 0)
    def sync(self) -> None:
        before = self._available()
        _step(self.wanted, self.sets)
        # The worst that a smaller size can do is to take available pods: unavailable ones go first by the ranking.
        for state in self.sets.values():
            state[1] = min(state[1], state[0])
        least = self.wanted.spec.replicas - surge.max_unavailable(self.wanted)
        assert self._available() >= min(before, least)

    @rule(data=st.data())
    @precondition(lambda self: any(state[1] < state[0] for state in self.sets.values()))
    def pod_becomes_available(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, state in self.sets.items() if state[1] < state[0])))
        self.sets[name][1] += 1

    @rule(data=st.data())
    @precondition(lambda self: any(state[1] > 0 for state in self.sets.values()))
    def pod_fails(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, state in self.sets.items() if state[1] > 0)))
        self.sets[name][1] -= 1

    def _available(self) -> int:
        return sum(state[1] for state in self.sets.values())

    @invariant()
    def never_too_many(self) -> None:
        assert sum(state[0] for state in self.sets.values()) <= self.limit

    @invariant()
    def never_negative(self) -> None:
        assert all(state[0] >= 0 for state in self.sets.values())


TestRollingMachine = RollingMachine.TestCase
TestRollingMachine.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_the_sizes_of_a_scale() -> None:
    scale = Scale(replica_set("a", 5), 3)
    assert scale.change == -2
    values: dict[str, Any] = {"wanted": rolling_update.wanted_pods([replica_set("a", 5), replica_set("b", 2)])}
    assert values == {"wanted": 7}
