"""kubectl's table of rolling updates, case by case, and the promises for all sizes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.commands.rolling_update.step_sizes import Bounds, Sizes, bounds, scale_down, scale_up, trim

# d: the old controller is scaled down, u: the new one up, -: neither; in parentheses the ready pods of the new one.
CASES = [
    ("30%/0 fast", 10, 0, 10, "30%", 0, "d7(0) u3 d4(3) u6 d1(6) u9 d0(9) u10"),
    ("30%/0 delayed", 10, 0, 10, "30%", 0, "d7(0) u3 -(0) d6(1) u4 d3(4) u7 d0(7) u10"),
    ("continued with 3 new", 7, 3, 10, "30%", 0, "d4(3) u6 d1(6) u9 d0(9) u10"),
    ("continued without a new one", 7, 0, 10, "30%", 0, "u3 -(0) d4(3) u6 d1(6) u9 d0(9) u10"),
    ("0/30% fast", 10, 0, 10, 0, "30%", "u3 d7(3) u6 d4(6) u9 d1(9) u10 d0(10)"),
    ("0/30% delayed", 10, 0, 10, 0, "30%", "u3 -(0) d9(1) u4 d7(3) u6 d4(6) u9 d1(9) u10 -(9) d0(10)"),
    ("10%/20% fast", 10, 0, 10, "10%", "20%", "u2 d7(2) u5 d4(5) u8 d1(8) u10 d0(10)"),
    ("10%/20% delayed", 10, 0, 10, "10%", "20%", "u2 d7(2) u5 d5(4) u7 -(4) d2(7) u10 d0(9)"),
    ("0/100% fast", 10, 0, 10, 0, "100%", "u10 d0(10)"),
    ("0/100% delayed", 10, 0, 10, 0, "100%", "u10 -(0) d8(2) d3(7) d0(10)"),
    ("100%/0", 10, 0, 10, "100%", 0, "d0(0) u10"),
    ("1 pod, 25%/25%", 1, 0, 1, "25%", "25%", "u1 -(0) d0(1)"),
    ("1 pod, 0/10%", 1, 0, 1, 0, "10%", "u1 -(0) d0(1)"),
    ("1 pod, 10%/10%", 1, 0, 1, "10%", "10%", "u1 -(0) d0(1)"),
    ("3 pods, 0/1", 3, 0, 3, 0, 1, "u1 d2(1) u2 d1(2) u3 d0(3)"),
    ("continued above the surge", 6, 5, 10, 0, "20%", "u6 d4(6) u8 d2(8) u10 d0(10)"),
    ("10 to 20, 0/300%", 10, 0, 20, 0, "300%", "u20 d0(20)"),
    ("back with one pod that was never ready", 1, 1, 1, 0, 1, "d0(1)"),
    ("to 0, 1/1", 3, 0, 0, 1, 1, "d0(0)"),
    ("to 0, 10%/10%", 3, 0, 0, "10%", "10%", "d0(0)"),
    ("nothing to do", 0, 0, 0, 1, 1, ""),
    ("30 to 2, 50%/0", 30, 0, 2, "50%", 0, "d1(0) u1 d0(2) u2"),
    ("2 pods, 1/0, one old pod never ready", 2, 0, 2, 1, 0, "d1(0) u1 d0(1) u2"),
    ("1 pod, 1%/0 rounds to nothing", 1, 0, 1, "1%", 0, "d0(0) u1"),
    ("1 to 2, 25%/25%", 1, 0, 2, "25%", "25%", "u2 d0(2)"),
    ("2 pods, 25%/1% rounds to surge", 2, 0, 2, "25%", "1%", "u1 d1(1) u2 d0(2)"),
    ("2 pods, 25%/0", 2, 0, 2, "25%", 0, "d1(0) u1 d0(1) u2"),
]
_TOKEN = re.compile(r"([du-])(\d*)(?:\((\d+)\))?")


@pytest.mark.parametrize(
    ("old", "new", "desired", "unavailable", "surge", "script"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_kubectls_table(
    old: int, new: int, desired: int, unavailable: int | str, surge: int | str, script: str
) -> None:
    limits = bounds(surge, unavailable, desired)
    tokens = script.split()
    for _ in range(60):
        if new == desired and old == 0:
            break
        if new != desired and (size := scale_up(limits, Sizes(old, new))) != new:
            assert tokens.pop(0) == f"u{size}"
            new = size
        if old:
            match = _TOKEN.fullmatch(tokens.pop(0))
            assert match is not None
            expected, wanted, ready = match.groups()
            assert expected in "d-"
            found = scale_down(limits, Sizes(old, new, ready_new=int(ready)))
            assert found == (old if expected == "-" else int(wanted))
            old = found
    assert (old, new, tokens) == (0, desired, [])


@pytest.mark.parametrize(
    ("surge", "unavailable", "desired", "least", "most"),
    [("300%", 0, 20, 20, 80), (1, 1, 0, 0, 1), ("10%", "10%", 0, 0, 0), (0, "50%", 3, 2, 3), (2, 50, 4, 0, 6)],
)
def test_bounds(surge: int | str, unavailable: int | str, desired: int, least: int, most: int) -> None:
    found = bounds(surge, unavailable, desired)
    assert (found.least_ready, found.most) == (least, most)


def test_pods_that_end_take_room() -> None:
    assert scale_up(Bounds(10, 0, 3), Sizes(7, 0, ending=3)) == 0
    assert scale_up(Bounds(10, 0, 3), Sizes(7, 0, ending=2)) == 1
    assert scale_up(Bounds(1, 0, 1), Sizes(0, 0, ending=1)) == 0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (Sizes(3, 6, ready_old=3, ready_new=6), 6),
        (Sizes(0, 12, ready_new=12), 6),
        (Sizes(0, 12, ready_new=6), 6),
        (Sizes(0, 12, ready_new=3), 6),
        (Sizes(4, 12, ready_old=2, ready_new=5), 6),
        (Sizes(4, 9, ready_old=0, ready_new=5), 6),
    ],
)
def test_a_controller_that_was_made_larger_meanwhile(sizes: Sizes, expected: int) -> None:
    assert trim(Bounds(6, 1, 0), sizes) == expected


_sizes = st.integers(0, 40)


@given(_sizes, st.integers(0, 10), st.integers(0, 10), _sizes, _sizes, st.data())
def test_promises(desired: int, surge: int, unavailable: int, old: int, new: int, data: st.DataObject) -> None:
    """A step up never exceeds the most, a step down never spends a ready pod that is needed."""
    limits = bounds(surge, unavailable, desired)
    ready_new = data.draw(st.integers(0, new))
    ending = data.draw(st.integers(0, 5))
    sizes = Sizes(old, new, ready_old=old, ready_new=ready_new, ending=ending)
    up = scale_up(limits, sizes)
    assert up == new or (new < up <= desired and old + up + ending <= limits.most)
    down = scale_down(limits, sizes)
    assert 0 <= down <= old
    assert down == old or down + ready_new >= min(limits.least_ready, old + ready_new)
    trimmed = trim(limits, sizes)
    assert trimmed == new or (desired <= trimmed < new)
    removed_ready = max(0, (new - trimmed) - (new - ready_new))
    assert removed_ready == 0 or old + ready_new - removed_ready >= limits.least_ready


@given(st.integers(1, 40), _sizes, st.integers(0, 10), st.integers(0, 10))
def test_an_update_with_healthy_pods_ends(desired: int, old: int, surge: int, unavailable: int) -> None:
    limits = bounds(surge, unavailable, desired)
    new = 0
    for _ in range(200):
        new = scale_up(limits, Sizes(old, new))
        old = scale_down(limits, Sizes(old, new, ready_new=new))
    assert (old, new) == (0, desired)
