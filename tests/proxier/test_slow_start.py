"""Slow start: how the share of a new endpoint grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address, Balancing, Family, Frontend, FrontendName, Protocol, ServicePortName, Target
from kubeproxy.proxier.slow_start import MOST_LOAD, STEPS, SlowStarts

NAME = FrontendName(ServicePortName("default", "web", ""), Family.IPV4)
SERVICE = NAME.service_port.service
TARGETS = tuple(Target(Address(f"10.0.0.{number}"), 80) for number in range(1, 10))


def frontend(*targets: Target, weights: tuple[int, ...] = ()) -> Frontend:
    return Frontend(
        name=NAME,
        protocol=Protocol.TCP,
        destinations={},
        endpoints=targets,
        balancing=Balancing(weights=weights),
    )


def shares(starts: SlowStarts, wanted: Frontend, slow_start_s: int = 30) -> dict[Target, float]:
    """The part of each endpoint in all connections."""
    (found,) = starts.applied(SERVICE, slow_start_s, [wanted])
    weights = [found.balancing.weight_of(number) for number in range(len(found.endpoints))]
    return {target: weight / sum(weights) for target, weight in zip(found.endpoints, weights, strict=True)}


def test_the_share_of_a_new_endpoint_grows_linearly_and_then_stays() -> None:
    starts, seen = SlowStarts(), []
    starts.advance(1000.0)
    assert set(shares(starts, frontend(*TARGETS[:3])).values()) == {1 / 3}, "nothing is new at the start"
    assert starts.next_step is None
    at: float | None = 1000.0
    while at is not None:
        starts.advance(at)
        mine = shares(starts, frontend(*TARGETS[:4]))
        seen.append(mine[TARGETS[3]] / mine[TARGETS[0]])
        assert at <= 1030.1, "the last step"
        at = starts.next_step
    assert [round(STEPS * each) for each in seen] == [*range(1, STEPS + 1), STEPS][: len(seen)]
    assert seen[-1] == 1.0
    assert starts.applied(SERVICE, 30, [frontend(*TARGETS[:4])]) == (frontend(*TARGETS[:4]),), "as without slow start"


def test_a_step_is_made_once_and_the_service_is_resolved_for_it() -> None:
    starts = SlowStarts()
    for now in (1.7e9, 1.7e9 + 0.1):
        starts.advance(now)
        shares(starts, frontend(*TARGETS[: 2 if now == 1.7e9 else 3]), 1)
    made = 0
    while (at := starts.next_step) is not None:
        assert starts.advance(at - 0.01) == []
        assert starts.advance(at) == [SERVICE]
        shares(starts, frontend(*TARGETS[:3]), 1)
        made += 1
        assert made <= STEPS
    assert made == STEPS


def test_an_endpoint_that_leaves_and_comes_back_is_new_again() -> None:
    starts = SlowStarts()
    for now, count in ((0.0, 3), (1.0, 2), (100.0, 3)):
        starts.advance(now)
        found = shares(starts, frontend(*TARGETS[:count]))
    assert found[TARGETS[2]] < 0.1


def test_without_slow_start_nothing_changes_and_nothing_is_due() -> None:
    starts = SlowStarts()
    for count in (2, 5):
        assert starts.applied(SERVICE, 0, [frontend(*TARGETS[:count])]) == (frontend(*TARGETS[:count]),)
    assert starts.next_step is None


@given(old=st.integers(1, 8), weights=st.lists(st.integers(1, 100), min_size=9, max_size=9), after=st.floats(0, 29.9))
def test_the_others_never_get_more_than_twice_their_share(old: int, weights: list[int], after: float) -> None:
    starts = SlowStarts()
    shares(starts, frontend(*TARGETS[:old], weights=tuple(weights[:old])))
    starts.advance(100.0)
    shares(starts, frontend(*TARGETS, weights=tuple(weights)))
    starts.advance(100.0 + after)
    found = shares(starts, frontend(*TARGETS, weights=tuple(weights)))
    for target, weight in zip(TARGETS[:old], weights, strict=False):
        assert found[target] <= 1.001 * MOST_LOAD * weight / sum(weights)
        assert found[target] >= 0.99 * weight / sum(weights)
