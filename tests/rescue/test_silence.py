"""`kubeproxy.rescue.silence`: which endpoints count as silent."""

from __future__ import annotations

import random

import pytest

from kubeproxy.model import Address, Target
from kubeproxy.rescue import silence
from kubeproxy.rescue.silence import (
    BLUR_LIMIT_S,
    LATE_MAX,
    LATE_S,
    PATIENCE_LIMIT_S,
    PATIENCE_S,
    Lateness,
    SilenceWatch,
)

POD = Target(Address("10.0.0.1"), 80)
LOOK_S = 0.05


class Endpoint:
    """An endpoint's stamps, as the kernel would have them."""

    def __init__(self) -> None:
        self.asked_at: float | None = None
        self.answered_at: float | None = None

    def stamps(self, now: float) -> tuple[dict[Target, float], dict[Target, float]]:
        return tuple({} if at is None or at > now else {POD: at} for at in (self.asked_at, self.answered_at))  # type: ignore[return-value]


def looks(watch: SilenceWatch, endpoint: Endpoint, begin: float, end: float) -> list[float]:
    """When the endpoint was found silent."""
    found = []
    now = begin
    while now < end:
        if watch.look(*endpoint.stamps(now), now):
            found.append(now)
        now += LOOK_S
    return found


def test_an_endpoint_that_never_answers_is_found_once() -> None:
    endpoint = Endpoint()
    endpoint.asked_at = 100.0
    watch = SilenceWatch()
    assert not watch.look(*endpoint.stamps(100.0), 100.0)
    waiting = [watch.waiting]
    (at,) = looks(watch, endpoint, 100.01, 105.0)
    assert [*waiting, watch.waiting] == [True, False]
    assert PATIENCE_S <= at - 100.0 <= PATIENCE_S + 2 * LOOK_S


def test_another_question_begins_another_wait() -> None:
    endpoint, watch = Endpoint(), SilenceWatch()
    endpoint.asked_at = 100.0
    assert len(looks(watch, endpoint, 100.0, 101.0)) == 1
    endpoint.asked_at = 101.0
    (at,) = looks(watch, endpoint, 101.0, 102.0)
    assert at - 101.0 >= PATIENCE_S


def test_questions_that_go_on_do_not_hide_the_silence() -> None:
    """An endpoint that is asked all the time has always been asked just now."""
    endpoint, watch = Endpoint(), SilenceWatch()
    endpoint.answered_at = 99.99
    found = []
    for step in range(100):
        now = 100.0 + step * LOOK_S
        endpoint.asked_at = now - 0.001
        if watch.look(*endpoint.stamps(now), now):
            found.append(now)
    assert PATIENCE_S <= found[0] - 100.0 <= PATIENCE_S + 2 * LOOK_S


def test_an_endpoint_that_answers_within_its_time_is_never_found() -> None:
    rng = random.Random(1)
    endpoint, watch = Endpoint(), SilenceWatch()
    now, next_look = 100.0, 100.0
    for _ in range(2000):
        endpoint.asked_at = now
        answer_at = now + rng.uniform(0.0, PATIENCE_S - LOOK_S)
        while next_look < answer_at:
            assert not watch.look(*endpoint.stamps(next_look), next_look)
            next_look += LOOK_S
        endpoint.answered_at = answer_at
        now = answer_at + rng.uniform(0.0, 0.3)
        while next_look < now:
            assert not watch.look(*endpoint.stamps(next_look), next_look)
            next_look += LOOK_S


def test_a_slow_path_gets_more_patience() -> None:
    endpoint, watch = Endpoint(), SilenceWatch()
    watch.measured(POD, 0.3)
    endpoint.asked_at = 100.0
    (at,) = looks(watch, endpoint, 100.0, 105.0)
    assert at - 100.0 >= 0.6
    watch.measured(POD, 30.0)
    endpoint.asked_at = 110.0
    (at,) = looks(watch, endpoint, 110.0, 115.0)
    assert at - 110.0 <= PATIENCE_LIMIT_S + 2 * LOOK_S
    watch.measured(POD, 0.001)
    endpoint.asked_at = 120.0
    (at,) = looks(watch, endpoint, 120.0, 125.0)
    assert at - 120.0 <= PATIENCE_S + 2 * LOOK_S


def test_the_slow_paths_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SLOW_MAX", 2)
    watch, asked = SilenceWatch(), {POD: 100.0}
    watch.measured(POD, 0.4)
    for number in (2, 3):
        watch.measured(Target(Address(f"10.0.0.{number}"), 80), 0.4)
    assert watch.look(asked, {}, 100.0 + PATIENCE_S) == [POD], "the longest known is forgotten"


def test_an_inexact_reading_does_not_make_an_endpoint_silent() -> None:
    """This process lost the processor between the two readings: old answers seem older than their questions."""
    asked, answered = {POD: 100.0}, {POD: 99.96}
    watch = SilenceWatch()
    assert watch.look(asked, answered, 110.0, blur_s=0.05) == []
    assert not watch.waiting
    assert watch.look(asked, answered, 110.0) == [POD], "the same of an exact reading"


def test_an_inexact_reading_may_overstate_the_wait() -> None:
    watch = SilenceWatch()
    assert watch.look({POD: 100.0}, {}, 100.0 + PATIENCE_S, blur_s=0.05) == []
    assert watch.waiting
    assert watch.look({POD: 100.0}, {}, 100.0 + PATIENCE_S + 0.051, blur_s=0.05) == [POD]


def test_a_very_inexact_reading_is_not_judged_and_loses_no_wait() -> None:
    watch = SilenceWatch()
    assert watch.look({POD: 100.0}, {}, 100.1) == []
    assert watch.look({POD: 100.2}, {}, 105.0, blur_s=2 * BLUR_LIMIT_S) == []
    assert watch.look({POD: 100.2}, {}, 100.26) == [POD], "asked all the time since 100.0"


def test_a_late_look_judges_nothing_but_not_for_ever() -> None:
    lateness = Lateness()
    lateness.looked(LATE_S / 2)
    assert (lateness.judges, lateness.late) == (True, False)
    seen = []
    for _ in range(LATE_MAX + 2):
        lateness.looked(2 * LATE_S)
        seen.append((lateness.judges, lateness.late))
    assert seen == [(False, True)] * LATE_MAX + [(True, True)] * 2
    lateness.looked(0.0)
    assert (lateness.judges, lateness.late) == (True, False)
