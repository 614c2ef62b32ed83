"""When Services have to be looked at again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import ServiceName
from kubeproxy.proxier.resolution_times import ResolutionTimes

NAMES = [ServiceName("shop", f"s{number}") for number in range(5)]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.integers(0, 20))), st.integers(0, 20))
def test_each_service_is_taken_at_its_last_time(changes: list[tuple[ServiceName, int | None]], now: int) -> None:
    times, last = ResolutionTimes(), dict[ServiceName, int]()
    for name, at in changes:
        times.set(name, at)
        last.pop(name, None)
        if at is not None:
            last[name] = at
    assert times.next == min(last.values(), default=None)
    assert set(times.take(now)) == {name for name, at in last.items() if at <= now}
    assert times.next == min((at for at in last.values() if at > now), default=None)


def test_changes_leave_nothing_behind() -> None:
    times = ResolutionTimes()
    for number in range(10_000):
        times.set(NAMES[0], 100.0 + number % 7)
    assert len(times._heap) < 100
