"""The memory reserve: spent by a failed allocation, mapped again later."""

from __future__ import annotations

import mmap

import pytest

from kubeproxy.dataplane.budgets import memory_reserve
from kubeproxy.dataplane.budgets.fd_budget import AT_LEAST, DescriptorBudget, Share
from kubeproxy.dataplane.budgets.memory_reserve import MemoryReserve
from kubeproxy.dataplane.loop.reactor import Reactor
from tests.support.clock import Clock

LIMIT = 400


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes mmap fail while the list has an element."""
    refused: list[int] = []
    real = mmap.mmap

    def make(*arguments: int, **named: int) -> mmap.mmap:
        if refused:
            raise OSError(12, "Cannot allocate memory")
        return real(*arguments, **named)

    monkeypatch.setattr("mmap.mmap", make)
    return refused


def test_a_flooded_frontend_leaves_others_room_when_memory_is_short(reactor: Reactor) -> None:
    """A frontend that has used up the memory gets no more; the others do."""
    budget, flood, other = DescriptorBudget(LIMIT), Share(), Share()
    for _ in range(75):
        assert budget.take(2, flood)
    assert MemoryReserve(budget=budget, reactor=reactor).spend()
    assert not budget.take(2, flood)
    taken = 0
    while budget.take(2, other):
        taken += 2
    assert 20 <= taken <= 25
    assert budget.used <= budget.limit == 200


def test_some_clients_are_served_even_if_there_were_none(reactor: Reactor) -> None:
    budget = DescriptorBudget(LIMIT)
    MemoryReserve(budget=budget, reactor=reactor).spend()
    assert budget.limit == AT_LEAST
    assert budget.take(2, Share())


def test_a_shortage_never_raises_the_limit(reactor: Reactor) -> None:
    budget, flood = DescriptorBudget(LIMIT), Share()
    while budget.take(2, flood):
        pass
    MemoryReserve(budget=budget, reactor=reactor).spend()
    assert budget.limit == LIMIT


def test_the_reserve_is_spent_once_until_memory_is_free_again(
    reactor: Reactor, clock: Clock, refusing: list[int]
) -> None:
    budget = DescriptorBudget(LIMIT)
    reserve = MemoryReserve(budget=budget, reactor=reactor)
    refusing.append(1)
    assert reserve.spend()
    assert not reserve.spend()
    for _ in range(3):
        clock.now += memory_reserve.LOOK_S
        reactor.turn()
        assert budget.limit == AT_LEAST
    refusing.clear()
    clock.now += memory_reserve.LOOK_S
    reactor.turn()
    assert budget.limit == LIMIT
    assert reserve.spend()
    assert reserve.shortages == 1 + 3 + 1


def test_without_memory_at_the_start_there_is_no_reserve(reactor: Reactor, refusing: list[int]) -> None:
    refusing.append(1)
    budget = DescriptorBudget(LIMIT)
    assert not MemoryReserve(budget=budget, reactor=reactor).spend()
    assert budget.limit == LIMIT
