"""`kubeproxy.proxier.slot_budget`: no namespace takes the kernel path from the others."""

from __future__ import annotations

from dataclasses import replace

from kubeproxy.model import Address, Destination, Frontend, FrontendName, Origin, Protocol, Target
from kubeproxy.proxier.slot_budget import SLOTS_MAX, SlotBudget
from tests.proxier.builders import frontend_name
from tests.proxier.test_data_path_choice import frontend


def large(name: str, addresses: int, endpoints: int, *, namespace: str = "default") -> Frontend:
    made = frontend_name(name)
    return replace(
        frontend(),
        name=made._replace(service_port=made.service_port._replace(namespace=namespace)),
        destinations={
            Destination(Address(f"192.0.2.{it}"), Protocol.TCP, 80): Origin.ANYWHERE for it in range(addresses)
        },
        endpoints=tuple(Target(Address(f"10.{it // 250}.{it % 250}.1"), 80) for it in range(endpoints)),
    )


def test_a_namespace_has_half_of_what_the_others_leave() -> None:
    budget = SlotBudget()
    half = large("a", 128, SLOTS_MAX // 2 // 128, namespace="greedy")
    assert budget.reserve(half) == ""
    assert budget.reserve(half) == "", "counted once"
    more = large("b", 1, 1, namespace="greedy")
    assert "namespace greedy" in budget.reserve(more)
    assert budget.why_refused(more.name)
    other = large("c", 128, SLOTS_MAX // 4 // 128, namespace="other")
    assert budget.reserve(other) == ""
    assert budget.reserve(large("d", 2, 1000, namespace="third")) == ""
    budget.release(half.name)
    assert budget.reserve(more) == ""
    assert budget.why_refused(more.name) == ""


def test_one_that_grows_too_large_gives_its_slots_back() -> None:
    budget = SlotBudget()
    assert budget.reserve(large("a", 1, 4000)) == ""
    assert budget.reserve(large("a", 200, 4000))
    assert budget.reserve(large("b", 128, SLOTS_MAX // 2 // 128)) == ""


def test_those_that_were_refused_are_admitted_in_turn_as_soon_as_there_is_room() -> None:
    budget = SlotBudget()
    half = large("a", 128, SLOTS_MAX // 2 // 128)
    assert budget.reserve(half) == ""
    late = [large(f"late{it}", 1, 1) for it in range(40)]
    assert all(map(budget.reserve, late))
    assert budget.admissible() == []
    budget.release(half.name)
    admitted: set[FrontendName] = set()
    while found := budget.admissible():
        admitted.update(found)
        assert not any(budget.reserve(it) for it in late if it.name in found)
    assert admitted == {it.name for it in late}
