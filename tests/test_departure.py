"""What is decided about the end; what clients see of it is in `tests/e2e/test_succession.py`."""

from __future__ import annotations

import pytest

from kubeproxy.departure import Bequest, arrival_s, bequest, last_s


@pytest.mark.parametrize(("ours", "cleanup_on_exit", "rules"), [
    (True, False, Bequest.PAUSE),
    (True, True, Bequest.REMOVE),
    (False, False, Bequest.LEAVE),
    (False, True, Bequest.LEAVE),
])  # fmt: skip
def test_the_rules_of_others_are_left_alone(ours: bool, cleanup_on_exit: bool, rules: Bequest) -> None:
    assert bequest(ours=ours, cleanup_on_exit=cleanup_on_exit) is rules


@pytest.mark.parametrize(("grace_s", "last", "arrival"), [
    (10.0, 1.0, 0.5),
    (1.0, 0.5, 0.5),
    (0.5, 0.25, 0.25),
    (0.0, 0.0, 0.0),
])  # fmt: skip
def test_what_is_kept_for_the_last_is_part_of_the_grace(grace_s: float, last: float, arrival: float) -> None:
    assert last_s(grace_s) == last
    assert arrival_s(grace_s) == arrival
