"""The size of a node's report, and the part of each namespace in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.controllers.deployments.drain_plan import MOST_AWAITED, MOST_DRAINED
from kubeproxy.daemon.report_room import (
    BYTES_PER_S,
    LEASE_BYTES,
    PAUSE_LIMIT_S,
    Fitting,
    fitting,
    pause_s,
    room,
    size_of,
)
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain_report import REPORT_BYTES, DrainState, NodeReport, ServiceReport, encode_report

VICTIM = ServiceName("victim", "web")
ADDRESSES = [Address(f"10.244.{number // 150 + 100}.{number % 150 + 100}") for number in range(20_000)]


def state(unused: int = 0, counted: int = 0, kept: int = 0) -> DrainState:
    """What is asked about so many addresses."""
    report = ServiceReport(1763827200123, frozenset(ADDRESSES[:unused]), frozenset(ADDRESSES[:kept]))
    return DrainState(report, counted=frozenset(ADDRESSES[:counted]), draining=frozenset())


def fit(states: dict[ServiceName, DrainState], room: int) -> Fitting:
    return fitting({name: size_of(name, each) for name, each in states.items()}, room)


def text(states: dict[ServiceName, DrainState], room: int) -> str:
    """The longest report of what fits."""
    fits = fit(states, room)
    services = {
        name: ServiceReport(it.report.generation, it.report.unused, it.report.kept, dict.fromkeys(it.counted, 9999999))
        for name, it in ((name, states[name]) for name in fits.services)
    }
    return encode_report(NodeReport(services, fits.omitted))


def test_everything_fits_in_an_ordinary_cluster() -> None:
    states = {ServiceName(f"team-{number}", "web"): state(5, 5) for number in range(100)}
    fits = fit(states, room(1000))
    assert set(fits.services) == set(states)
    assert fits.omitted == {}


@pytest.mark.parametrize("nodes", [3, 1000, 5000])
def test_largest_step_of_one_deployment_fits(nodes: int) -> None:
    fits = fit({VICTIM: state(unused=MOST_AWAITED, counted=MOST_DRAINED)}, room(nodes))
    assert (set(fits.services), fits.omitted) == ({VICTIM}, {})


def test_two_services_of_a_tenant_leave_the_room_of_all_others() -> None:
    evil = {ServiceName("evil", f"b{number}"): state(unused=17_500) for number in range(2)}
    fits = fit({**evil, VICTIM: state(5, 5)}, room(1000))
    assert set(fits.services) == {VICTIM}
    assert fits.omitted == {"evil": 2}


def test_large_service_keeps_no_small_one_of_its_namespace_out() -> None:
    names = [ServiceName("shop", name) for name in ("a-large", "web")]
    fits = fit({names[0]: state(unused=5000), names[1]: state(3, 3)}, room(1000))
    assert set(fits.services) == {names[1]}
    assert fits.omitted == {"shop": 1}


def test_hundred_namespaces_of_a_tenant_do_not_take_the_room_of_one_service() -> None:
    crowd = {
        ServiceName(f"evil-{number}-{'x' * 50}", f"s{each}"): state(200, 200)
        for number in range(100)
        for each in range(9)
    }
    fits = fit({**crowd, VICTIM: state(5, 5)}, room(1000))
    assert VICTIM in fits.services
    assert sum(fits.omitted.values()) == len(crowd) + 1 - len(fits.services)


def test_where_all_parts_are_too_small_those_that_need_the_least_are_served() -> None:
    crowd = {ServiceName(f"evil-{number}", "s"): state(3) for number in range(2000)}
    fits = fit({**crowd, VICTIM: state(1)}, room(1000))
    assert VICTIM in fits.services
    assert len(fits.services) > 300
    assert sum(fits.omitted.values()) == len(crowd) + 1 - len(fits.services)
    assert fits.omitted[""] > 0, "not all namespaces can be named"


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 50)),
        max_size=60,
    ),
    st.integers(1, 10_000),
)
def test_what_fits_is_never_longer_than_the_room(
    needs: dict[tuple[int, int], tuple[int, int, int]], nodes: int
) -> None:
    states = {ServiceName(f"n{a}", f"s{b}"): state(*need) for (a, b), need in needs.items()}
    assert len(text(states, room(nodes))) <= room(nodes)


@pytest.mark.parametrize("nodes", [1, 10, 100, 1000, 2000])
def test_largest_reports_stay_below_the_rate_of_all_nodes(nodes: int) -> None:
    pause = pause_s(nodes, room(nodes))
    assert pause <= PAUSE_LIMIT_S
    assert nodes * (room(nodes) + LEASE_BYTES) / pause <= BYTES_PER_S + 1
    assert room(nodes) <= REPORT_BYTES
