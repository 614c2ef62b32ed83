"""`kubeproxy.runtime.few_by_name`."""

from __future__ import annotations

from kubeproxy.runtime.few_by_name import FewByName


def test_the_first_few_of_an_interval_are_logged_and_the_others_counted() -> None:
    few = FewByName(at_most=2, interval_s=5.0)
    assert [few.allow(100.0 + number) for number in range(4)] == [True, True, False, False]
    assert few.others(104.9) == 0, "the interval lasts"
    assert not few.allow(106.0), "until the others are logged"
    assert few.others(106.0) == 3
    assert few.others(106.0) == 0, "once"
    assert few.allow(106.1)
    assert few.others(200.0) == 0, "there are none"
