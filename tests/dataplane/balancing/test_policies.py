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


@given(scheduler=schedulers, ports=st.lists(st.integers(1, 65535), min_size=2, max_size=20))
def test_a_client_that_is_bound_keeps_its_endpoint_whatever_the_scheduler(
    scheduler: Scheduler, ports: list[int]
) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS, 60.0, Balancing(scheduler))
    picked = []
    for number, port in enumerate(ports):
        picked.append(balancer.pick("10.9.0.1", number, port=port))
        assert picked[-1] is not None
        balancer.opened(picked[-1])
        balancer.pick(f"10.9.1.{number}", number, port=port)
    assert len(set(picked)) == 1


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


# Weights


weights_of_four = st.lists(st.integers(1, 100), min_size=4, max_size=4).map(tuple)


@given(weights=weights_of_four)
def test_turns_follow_the_weights_exactly_and_without_bursts(weights: tuple[int, ...]) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:4], None, Balancing(weights=weights))
    counts: Counter[Target | None] = Counter()
    for picks in range(1, 2 * sum(weights) + 1):
        counts[balancer.pick("10.9.0.1", 0.0)] += 1
        for target, weight in zip(TARGETS, weights, strict=False):
            due = picks * weight / sum(weights)
            assert abs(counts[target] - due) <= 3, "at no moment far from its share"


@pytest.mark.parametrize("scheduler", [Scheduler.RANDOM, Scheduler.SOURCE_HASH, Scheduler.MAGLEV])
def test_shares_follow_the_weights(scheduler: Scheduler) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:3], None, Balancing(scheduler, weights=(1, 2, 7), seed=5))
    clients = [(f"10.{n % 7}.{n // 250}.{n % 250}", 1024 + n) for n in range(20_000)]
    counts = Counter(balancer.pick(client, 0.0, port=port) for client, port in clients)
    shares = [counts[target] / len(clients) for target in TARGETS[:3]]
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


@given(weights=weights_of_four, clients=st.integers(1, 400))
def test_what_is_open_follows_the_weights(weights: tuple[int, ...], clients: int) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:4], None, Balancing(Scheduler.LEAST_CONNECTIONS, weights=weights))
    for number in range(clients):
        picked = balancer.pick(f"10.9.0.{number % 250}", 0.0)
        assert picked is not None
        balancer.opened(picked)
    for target, weight in zip(TARGETS, weights, strict=False):
        assert abs(balancer.open.get(target, 0) - clients * weight / sum(weights)) <= 4


@given(before=weights_of_four, after=weights_of_four, picks=st.integers(0, 50))
def test_new_weights_hold_at_once_and_nobody_waits_longer_than_a_turn(
    before: tuple[int, ...], after: tuple[int, ...], picks: int
) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:4], None, Balancing(weights=before))
    for _ in range(picks):
        balancer.pick("10.9.0.1", 0.0)
    balancer.update(TARGETS[:4], None, Balancing(weights=after))
    counts = Counter(balancer.pick("10.9.0.1", 0.0) for _ in range(sum(after)))
    for target, weight in zip(TARGETS, after, strict=False):
        assert abs(counts[target] - weight) <= 3


# Least connections


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=200), st.sets(st.integers(0, 7), max_size=6))
def test_the_endpoint_with_the_fewest_open_connections_is_picked(
    history: list[tuple[bool, int]], avoided: set[int]
) -> None:
    balancer = balancer_of(*TARGETS, scheduler=Scheduler.LEAST_CONNECTIONS)
    for opens, number in history:
        if opens:
            balancer.opened(TARGETS[number])
        elif balancer.open.get(TARGETS[number]):
            balancer.closed(TARGETS[number])
    avoid = [TARGETS[number] for number in avoided]
    picked = balancer.pick("10.9.0.1", 0.0, avoid)
    assert picked is not None
    least = min(balancer.open.get(target, 0) for target in TARGETS if target not in avoid)
    assert balancer.open.get(picked, 0) == least


def test_endpoints_with_equally_many_get_clients_in_turn() -> None:
    balancer = balancer_of(*TARGETS, scheduler=Scheduler.LEAST_CONNECTIONS)
    first = [balancer.pick("10.9.0.1", 0.0) for _ in TARGETS]
    assert set(first) == set(TARGETS)
    assert [balancer.pick("10.9.0.1", 0.0) for _ in TARGETS] == first


@given(weights=weights_of_four)
def test_while_nothing_is_open_every_endpoint_gets_the_share_of_its_weight(weights: tuple[int, ...]) -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:4], None, Balancing(Scheduler.LEAST_CONNECTIONS, weights=weights))
    counts = Counter(balancer.pick("10.9.0.1", 0.0) for _ in range(sum(weights)))
    for target, weight in zip(TARGETS, weights, strict=False):
        assert abs(counts[target] - weight) <= 2


def test_an_endpoint_that_was_full_for_long_makes_up_for_no_turns() -> None:
    balancer = balancer_of(*TARGETS[:2], scheduler=Scheduler.LEAST_CONNECTIONS)
    balancer.opened(TARGETS[0])
    assert {balancer.pick("10.9.0.1", 0.0) for _ in range(50)} == {TARGETS[1]}
    balancer.closed(TARGETS[0])
    assert Counter(balancer.pick("10.9.0.1", 0.0) for _ in range(20))[TARGETS[0]] <= 11


def test_of_very_many_endpoints_none_gets_far_more_than_the_others() -> None:
    many = [Target(Address(f"10.1.{number // 250}.{number % 250}"), 80) for number in range(1000)]
    balancer = balancer_of(*many, scheduler=Scheduler.LEAST_CONNECTIONS)
    rng, opened = random.Random(2), list[Target]()
    for _ in range(20_000):
        if opened and rng.random() < 0.4:
            balancer.closed(opened.pop(rng.randrange(len(opened))))
        else:
            picked = balancer.pick("10.9.0.1", 0.0)
            assert picked is not None
            balancer.opened(picked)
            opened.append(picked)
    mean = len(opened) / len(many)
    assert max(balancer.open.values()) <= mean + 2
    assert min(balancer.open.get(target, 0) for target in many) >= mean - 3


# Hashes


@given(
    scheduler=st.sampled_from([Scheduler.SOURCE_HASH, Scheduler.MAGLEV]),
    client=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    port=st.integers(1, 65535),
    seed=st.integers(1, 2**32 - 1),
    order=st.permutations(TARGETS),
)
def test_a_client_has_the_same_order_of_endpoints_everywhere_and_returns_to_the_first(
    scheduler: Scheduler, client: str, port: int, seed: int, order: list[Target]
) -> None:
    one, other = (Balancer(rng=random.Random(number), probes_beside=True) for number in (1, 2))
    one.update(TARGETS, None, Balancing(scheduler, seed=seed))
    other.update(order, None, Balancing(scheduler, seed=seed))
    assert one.preview(client, 0.0, limit=9, port=port) == other.preview(client, 0.0, limit=9, port=port)
    _, (first, second, *_) = one.preview(client, 0.0, limit=9, port=port)
    one.failed(first, 0.0, "refused")
    assert one.pick(client, 0.5, port=port) == second
    one.answered(first)
    assert one.pick(client, 0.5, port=port) == first


def test_a_client_of_a_link_has_an_endpoint_too() -> None:
    balancer = balancer_of(*TARGETS, scheduler=Scheduler.MAGLEV)
    assert balancer.pick("fe80::1%eth0", 0.0, port=1) == balancer.pick("fe80::1", 0.0, port=1)


def test_a_hash_of_the_address_alone_leaves_a_client_with_its_endpoint_whatever_its_port() -> None:
    by_address = balancer_of(*TARGETS, scheduler=Scheduler.SOURCE_HASH)
    by_port = balancer_of(*TARGETS, scheduler=Scheduler.MAGLEV)
    assert len({by_address.pick("10.9.0.1", 0.0, port=port) for port in range(1, 500)}) == 1
    assert len({by_port.pick("10.9.0.1", 0.0, port=port) for port in range(1, 500)}) == len(TARGETS)
