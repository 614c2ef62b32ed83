"""Proportional scaling, after the table of upstream's TestScale."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments import proportional
from tests.controllers.builders import deployment, replica_set


def _sets(sizes: list[int], old: int, surge: int, *, with_new: bool) -> tuple[ReplicaSet | None, list[ReplicaSet]]:
    """The first is the new one; the others get older."""
    made = [
        replica_set(f"rs-{index}", size, age=10 * (index + 1), desired=old, maximum=old + surge)
        for index, size in enumerate(sizes)
    ]
    return (made[0], made[1:]) if with_new else (None, made)


def _sizes(wanted: Deployment, new: ReplicaSet | None, old: list[ReplicaSet]) -> list[int]:
    scales = {scale.replica_set.metadata.name: scale.replicas for scale in proportional.scale(wanted, new, old)}
    everything = [*([] if new is None else [new]), *old]
    return [scales.get(each.metadata.name, each.spec.replicas) for each in everything]


@pytest.mark.parametrize(
    ("before", "after", "sizes", "expected"),
    [
        (10, 12, [10], [12]),
        (10, 5, [10], [5]),
        (5, 10, [2, 3], [4, 6]),
        (5, 3, [2, 3], [1, 2]),
        (9, 4, [8, 1], [4, 0]),
        (7, 10, [2, 3, 2], [3, 4, 3]),
        (13, 8, [2, 8, 3], [1, 5, 2]),
        (3, 4, [1, 1, 1], [2, 1, 1]),
        (3, 2, [1, 1, 1], [1, 1, 0]),
        (6, 0, [1, 3, 2], [0, 0, 0]),
        (0, 6, [0, 0, 0], [6, 0, 0]),
    ],
)
def test_without_surge(before: int, after: int, sizes: list[int], expected: list[int]) -> None:
    new, old = _sets(sizes, before, 0, with_new=True)
    assert _sizes(deployment(after), new, old) == expected


def test_without_a_new_replica_set() -> None:
    assert _sizes(deployment(5), *_sets([2, 2], 4, 0, with_new=False)) == [3, 2]
    assert _sizes(deployment(14), *_sets([7, 3], 10, 0, with_new=False)) == [10, 4]


def test_with_surge() -> None:
    assert _sizes(deployment(20, surge=2), *_sets([6, 6], 10, 2, with_new=True)) == [11, 11]
    assert _sizes(deployment(50, surge=6), *_sets([5, 8], 10, 3, with_new=True)) == [22, 34]


def test_a_saturated_new_replica_set_takes_all() -> None:
    new = replica_set("new", 5, desired=5, maximum=5)
    assert _sizes(deployment(5), new, [replica_set("old", 2, desired=5, maximum=5)]) == [5, 0]


def test_a_broken_new_replica_set_is_not_saturated() -> None:
    new = replica_set("new", 2, available=0, desired=2, maximum=3)
    old = replica_set("old", 1, age=200, desired=2, maximum=3)
    assert _sizes(deployment(2, surge=1), new, [old]) == [2, 1]


def test_recreate_with_several_active_sets_is_left_alone() -> None:
    new, old = _sets([2, 3], 5, 0, with_new=True)
    assert proportional.scale(deployment(10, strategy="Recreate"), new, old) == []


def test_a_missing_annotation_is_replaced_by_the_status() -> None:
    sets = [replica_set("a", 6, age=1), replica_set("b", 4, age=2)]
    assert _sizes(deployment(20, status={"replicas": 10}), None, sets) == [12, 8]


@pytest.mark.parametrize("maximum", [0, -4])
def test_an_impossible_annotation_is_replaced_by_the_status(maximum: int) -> None:
    sets = [replica_set(name, size, age=size, desired=10, maximum=maximum) for name, size in (("a", 6), ("b", 4))]
    assert _sizes(deployment(20, status={"replicas": 10}), None, sets) == [12, 8]


def test_what_is_left_over_makes_no_size_negative() -> None:
    sets = [replica_set(name, 3, age=age, desired=6, maximum=1) for name, age in (("old", 20), ("young", 10))]
    assert _sizes(deployment(1), None, sets) == [0, 3]


def test_the_newest_old_set_is_scaled_where_none_is_active() -> None:
    old = [replica_set("older", 0, age=20), replica_set("younger", 0, age=10)]
    (scale,) = proportional.scale(deployment(3), None, old)
    assert (scale.replica_set.metadata.name, scale.replicas) == ("younger", 3)


@pytest.mark.parametrize(
    ("replicas", "sets", "expected"),
    [
        (10, [replica_set("a", 10, desired=10)], False),
        (10, [replica_set("a", 10, desired=9)], True),
        (10, [replica_set("a", 0, desired=9)], False),
        (10, [replica_set("a", 10)], False),
        (10, [replica_set("a", 10, annotations={"deployment.kubernetes.io/desired-replicas": "ten"})], False),
    ],
)
def test_a_scaling_event(replicas: int, sets: list[ReplicaSet], expected: bool) -> None:
    assert proportional.is_scaling_event(deployment(replicas), sets) is expected


def test_recreate_with_several_active_sets_goes_on() -> None:
    sets = [replica_set("a", 2, desired=2), replica_set("b", 2, desired=2)]
    assert not proportional.is_scaling_event(deployment(4, strategy="Recreate"), sets)
    assert proportional.is_scaling_event(deployment(4, strategy="Recreate"), sets[:1])
    assert proportional.is_scaling_event(deployment(4), sets)


def test_sizes_are_kept_in_order_of_size_then_age() -> None:
    sets = [
        replica_set("a", 3, age=30, maximum=9),
        replica_set("b", 3, age=20, maximum=9),
        replica_set("c", 3, age=10, maximum=9),
    ]
    grown = proportional.scale(msgspec.structs.replace(deployment(10)), None, sets)
    assert [scale.replica_set.metadata.name for scale in grown] == ["c", "b", "a"]  # newer first
    shrunk = proportional.scale(deployment(8), None, sets)
    assert [scale.replica_set.metadata.name for scale in shrunk] == ["a", "b", "c"]  # older first
