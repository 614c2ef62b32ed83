"""What every policy keeps to, whatever the scheduler."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.model import Address, Balancing, Scheduler, Target

TARGETS = tuple(Target(Address(f"10.0.0.{number}"), 80) for number in range(8))
some_targets = st.sets(st.sampled_from(TARGETS)).map(lambda some: tuple(sorted(some)))
schedulers = st.sampled_from(Scheduler)


def balancer_of(*targets: Target, scheduler: Scheduler, probes_beside: bool = True) -> Balancer:
    balancer = Balancer(rng=random.Random(1), probes_beside=probes_beside)
    balancer.update(targets, None, Balancing(scheduler))
    return balancer


@given(scheduler=schedulers, members=some_targets, dead=some_targets, avoid=some_targets, clients=st.integers(1, 60))
def test_a_client_gets_an_endpoint_that_is_there_and_not_ejected_as_long_as_there_is_one(
    scheduler: Scheduler, members: tuple[Target, ...], dead: tuple[Target, ...], avoid: tuple[Target, ...], clients: int
) -> None:
    balancer = balancer_of(*members, scheduler=scheduler)
    for target in dead:
        balancer.failed(target, 0.0, "refused")
    allowed = set(members) - set(avoid)
    for number in range(clients):
        picked = balancer.pick(f"10.9.0.{number}", 0.1, avoid, port=40_000 + number)
        assert picked in (allowed - set(dead) or allowed) if allowed else picked is None


@given(scheduler=schedulers, members=some_targets, clients=st.integers(0, 30), port=st.integers(1, 65535))
def test_the_preview_is_the_order_of_picks_and_changes_nothing(
    scheduler: Scheduler, members: tuple[Target, ...], clients: int, port: int
) -> None:
    balancer = balancer_of(*members, scheduler=scheduler)
    for number in range(clients):
        balancer.pick(f"10.9.0.{number}", 0.0, port=port)
    _, order = balancer.preview("10.9.1.1", 0.0, limit=100, port=port)
    assert sorted(order) == sorted(members)
    tried: list[Target] = []
    while (target := balancer.pick("10.9.1.1", 0.0, tried, port=port)) is not None:
        tried.append(target)
    assert order == tuple(tried)


@given(before=schedulers, after=schedulers, members=some_targets)
def test_another_scheduler_has_the_same_endpoints(
    before: Scheduler, after: Scheduler, members: tuple[Target, ...]
) -> None:
    balancer = balancer_of(*members, scheduler=before)
    balancer.failed(TARGETS[0], 0.0, "refused")
    balancer.update(members, None, Balancing(after))
    assert sorted(balancer.endpoints) == sorted(members)
    assert set(balancer.ejected) == {TARGETS[0]} & set(members), "an ejection outlives the change"


@pytest.mark.parametrize("scheduler", Scheduler)
def test_what_is_open_is_counted_even_of_endpoints_that_have_left(scheduler: Scheduler) -> None:
    balancer = balancer_of(*TARGETS[:2], scheduler=scheduler)
    for target in (TARGETS[0], TARGETS[0], TARGETS[1]):
        balancer.opened(target)
    balancer.update(TARGETS[1:3], None, Balancing(scheduler))
    assert balancer.open == {TARGETS[0]: 2, TARGETS[1]: 1}
    for target in (TARGETS[0], TARGETS[0], TARGETS[1]):
        balancer.closed(target)
    assert not balancer.open


def test_a_draw_reaches_every_endpoint_about_equally() -> None:
    balancer = balancer_of(*TARGETS, scheduler=Scheduler.RANDOM)
    counts = Counter(balancer.pick("10.9.0.1", 0.0) for _ in range(8000))
    assert all(850 < counts[target] < 1150 for target in TARGETS)
