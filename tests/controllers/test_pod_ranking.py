"""Which pods go first: one test per criterion, and a total order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.pod_ranking import choose_pods_to_delete, deletion_cost
from tests.controllers.builders import EPOCH, pod


def _first(*pods: Pod, related: tuple[Pod, ...] = ()) -> str:
    (chosen,) = choose_pods_to_delete(pods, 1, related=related, now=EPOCH)
    (again,) = choose_pods_to_delete(pods[::-1], 1, related=related, now=EPOCH)
    assert chosen == again
    return chosen.metadata.name


def test_unassigned_before_assigned() -> None:
    assert _first(pod("a", ready_s=5), pod("b", node="")) == "b"


def test_by_phase() -> None:
    assert _first(pod("a", phase="Running"), pod("b", phase="Unknown"), pod("c", phase="Pending")) == "c"
    assert _first(pod("a", phase="Running"), pod("b", phase="Unknown")) == "b"


def test_not_ready_before_ready() -> None:
    assert _first(pod("a", ready_s=100), pod("b", unready=True)) == "b"


def test_by_deletion_cost() -> None:
    assert _first(pod("a", ready_s=9), pod("b", ready_s=9, cost="-5"), pod("c", ready_s=9, cost="7")) == "b"
    assert _first(pod("a", unready=True, cost="100"), pod("b", ready_s=9, cost="-100")) == "a"


def test_from_the_node_with_most_related_pods() -> None:
    related = (pod("x", node="crowded"), pod("y", node="crowded"), pod("z", node="quiet"))
    assert _first(pod("a", node="quiet", ready_s=9), pod("b", node="crowded", ready_s=9), related=related) == "b"


def test_ready_for_a_shorter_time() -> None:
    assert _first(pod("a", ready_s=1000), pod("b", ready_s=10)) == "b"
    # Ready times within one power of two are about the same: here restarts decide.
    assert _first(pod("a", ready_s=1000), pod("b", ready_s=1001, restarts=1)) == "b"


def test_by_restarts() -> None:
    assert _first(pod("a", ready_s=9, restarts=1), pod("b", ready_s=9, restarts=3)) == "b"
    assert _first(pod("a", ready_s=9, init_restarts=1), pod("b", ready_s=9)) == "a"


def test_newer_before_older_and_without_a_time_first() -> None:
    assert _first(pod("a", age_s=5000), pod("b", age_s=10)) == "b"
    assert _first(pod("a", age_s=5000), pod("b", age_s=None)) == "b"
    assert _first(pod("a", age_s=5000, uid="2"), pod("b", age_s=5001, uid="1")) == "b"


def test_all_of_them_are_not_sorted() -> None:
    pods = [pod("a", ready_s=9), pod("b", node="")]
    assert choose_pods_to_delete(pods, 2, related=(), now=EPOCH) == pods


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        (None, 0), ("5", 5), ("-5", -5), ("0", 0), ("+5", 0), ("05", 0), ("", 0), ("1.5", 0), ("five", 0),
        ("2147483647", 2147483647), ("2147483648", 0), ("-2147483648", -2147483648), ("٣", 0), (" 5", 0),
    ],
)  # fmt: skip
def test_deletion_cost(text: str | None, cost: int) -> None:
    assert deletion_cost(pod("a", cost=text)) == cost


pods = st.builds(
    pod,
    st.uuids().map(str),
    node=st.sampled_from(["", "a", "b"]),
    phase=st.sampled_from(["Running", "Pending", "Unknown"]),
    ready_s=st.none() | st.floats(0, 1e6),
    restarts=st.integers(0, 3),
    age_s=st.none() | st.floats(0, 1e6),
    cost=st.none() | st.integers(-3, 3).map(str),
)


@given(st.lists(pods, min_size=2, max_size=8, unique_by=lambda item: item.metadata.name), st.data())
def test_the_choice_does_not_depend_on_the_order(items: list[Pod], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(items) - 1))
    shuffled = data.draw(st.permutations(items))
    first = choose_pods_to_delete(items, number, related=items, now=EPOCH)
    assert first == choose_pods_to_delete(shuffled, number, related=items, now=EPOCH)
