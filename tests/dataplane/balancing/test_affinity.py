"""Session affinity: bindings, their expiry, and their exchange between processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.dataplane.balancing import affinity as affinity_module
from kubeproxy.dataplane.balancing.affinity import AT_ONCE, Affinity, freshest, merged, pieces
from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import Address, Target
from tests.dataplane.conftest import frontend

ONE, TWO = (Target(Address(f"10.0.0.{number}"), 8080) for number in (1, 2))


def known(*bindings: Binding, now: float = 0.0, timeout_s: float | None = 100.0) -> Affinity:
    """An affinity table with these bindings."""
    affinity = Affinity()
    affinity.set_timeout(timeout_s)
    affinity.learn(bindings, now)
    return affinity


def test_bindings_cross_processes_with_ages_not_times() -> None:
    before = known(now=1000.0)
    before.bind("a", ONE, 1000.0)
    before.bind("b", TWO, 1030.0)
    after = known(now=5.0)
    after.restore_bindings(before.bindings(1040.0), 5.0)
    assert list(after.bindings(5.0)) == [Binding("a", ONE, 40.0), Binding("b", TWO, 10.0)]
    assert after.of("a", 64.0) == ONE
    assert after.of("a", 66.0) is None, "expires at the same time as in the first process"
    assert after.of("b", 66.0) == TWO


def test_only_bindings_used_since_then_are_listed() -> None:
    affinity = known()
    for client, now in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("a", 4.0)):
        affinity.bind(client, ONE, now)
    assert [each.client for each in affinity.bindings(5.0)] == ["b", "c", "a"]
    assert [each.client for each in affinity.bindings(5.0, since=3.0)] == ["c", "a"]
    assert list(affinity.bindings(5.0, since=4.5)) == []


def test_restored_bindings_yield_to_known_ones_and_learnt_ones_replace_them() -> None:
    new = [Binding("a", TWO, 1.0)]
    affinity = known(Binding("a", ONE, 50.0))
    affinity.restore_bindings(new, 0.0)
    assert affinity.of("a", 0.0) == ONE
    affinity.learn(new, 0.0)
    assert affinity.of("a", 0.0) == TWO


@pytest.mark.parametrize("age_s", [100.0, -1.0, float("nan"), float("inf")])
def test_expired_and_invalid_ages_are_dropped(age_s: float) -> None:
    assert len(known(Binding("a", ONE, age_s))) == 0


def test_without_affinity_there_are_no_bindings() -> None:
    assert len(known(Binding("a", ONE, 1.0), timeout_s=None)) == 0
    affinity = known(Binding("a", ONE, 1.0))
    affinity.set_timeout(None)
    affinity.set_timeout(100.0)
    assert affinity.of("a", 0.0) is None


def test_a_binding_out_of_order_gets_the_latest_time() -> None:
    """So the least recently seen are always first, in whatever order bindings are learnt."""
    affinity = known(Binding("a", ONE, 10.0), Binding("b", ONE, 90.0))
    assert list(affinity.bindings(0.0)) == [Binding("a", ONE, 10.0), Binding("b", ONE, 10.0)]
    affinity.bind("c", ONE, 95.0)
    assert [each.client for each in affinity.bindings(95.0)] == ["c"], "the two have expired"


def test_learnt_bindings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity_module, "AFFINITY_ENTRIES", 10)
    affinity = known(*(Binding(f"client-{number}", ONE, 99.0 - number) for number in range(50)))
    assert [each.client for each in affinity.bindings(0.0)] == [f"client-{number}" for number in range(40, 50)]


def test_a_merge_keeps_the_newest_bindings() -> None:
    old, new = frontend("old"), frontend("new")
    remembered = [
        *pieces(old, [Binding(f"o{age}", ONE, age) for age in range(100, 0, -1)]),
        *pieces(new, [Binding(f"n{age}", TWO, age) for age in (3, 2)]),
        *pieces(new, [Binding(f"m{age}", TWO, age) for age in (3.5, 1)]),  # of another worker
    ]
    assert all(len(piece.bindings) <= AT_ONCE for piece in remembered)
    found: dict[object, list[str]] = {}
    for piece in merged(remembered, limit=7):
        found.setdefault(piece.frontend, []).extend(binding.client for binding in piece.bindings)
    assert found == {new: ["m3.5", "n3", "n2", "m1"], old: ["o3", "o2", "o1"]}
    assert sum(len(piece.bindings) for piece in merged(remembered)) == 104
    assert merged([]) == []


def test_the_freshest_pieces_come_first() -> None:
    old = list(pieces(frontend("old"), [Binding(f"o{age}", ONE, age) for age in range(100, 0, -1)]))
    new = list(pieces(frontend("new"), [Binding("n", TWO, 0.5)]))
    assert freshest([*old, *new], limit=50) == [*new, old[3], old[2]]
    assert freshest([*old, *new]) == [*new, *reversed(old)]
    assert freshest([]) == []


def test_of_two_bindings_of_a_client_the_later_one_counts() -> None:
    earlier, later = (list(pieces(frontend(), [Binding("a", *bound)])) for bound in ((ONE, 9.0), (TWO, 3.0)))
    assert merged([*earlier, *later]) == merged([*later, *earlier]) == later


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([ONE, TWO]), st.floats(0.0, 30.0)), max_size=40),
    st.floats(0.0, 200.0),
)
def test_a_new_instance_binds_clients_as_the_predecessor_did(
    uses: list[tuple[str, Target, float]], asked_after_s: float
) -> None:
    before, now = known(), 0.0
    for client, target, later_s in uses:
        now += later_s
        before.bind(client, target, now)
    sent: list[RestoreBindings] = merged(pieces(frontend(), before.bindings(now)))
    after = known()
    for piece in sent:
        after.restore_bindings(piece.bindings, 7.0)
    # Not at the exact time of expiry, because adding and subtracting seconds rounds.
    for asked in (asked_after_s - 1e-6, asked_after_s + 1e-6):
        if all(abs(asked + binding.age_s - 100.0) > 1e-3 for piece in sent for binding in piece.bindings):
            assert [after.of(client, 7.0 + asked) for client in "abcdefgh"] == [
                before.of(client, now + asked) for client in "abcdefgh"
            ]
