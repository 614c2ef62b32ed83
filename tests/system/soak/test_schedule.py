"""The schedule is a function of its seed, and keeps its word about what is steady."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kubeproxy.model import Scheduler
from tests.system.soak.actions import ROOT
from tests.system.soak.schedule import (
    API,
    BY_NAME,
    FAULTS,
    KERNEL_NETFILTER,
    KERNEL_PROCESS,
    NETFILTER,
    PATHS,
    PLACES,
    PROCESS,
    RESCUE,
    SOUND,
    acts,
    first_path,
)

SEEDS = (0, 1, 2, 4711)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_gives_the_same_events(seed: int) -> None:
    assert acts(seed, 600.0) == acts(seed, 600.0)
    assert acts(seed, 600.0) != acts(seed + 1, 600.0)


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    for short, long in zip(acts(3, 60.0), acts(3, 600.0), strict=True):
        assert long.events[: len(short.events)] == short.events


def test_it_is_the_same_in_another_process() -> None:
    """Not a function of the order of a set, or of anything else that differs from process to process."""
    code = "from tests.system.soak.schedule import acts; print(acts(7, 300.0))"
    texts = set()
    for number in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    assert len(texts) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_steady_services_always_have_an_endpoint_that_is_alive(seed: int) -> None:
    for act in acts(seed, 600.0):
        for event in act.events:
            if event.track == "pods":
                assert int(event.target) not in SOUND
            elif event.track == "services" and BY_NAME[event.target].steady:
                assert set(event.pods) & set(SOUND), event
    assert all(set(place.pods) & set(SOUND) for place in PLACES if place.steady)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_vanishes_was_there_and_what_ends_had_begun(seed: int) -> None:
    for act in acts(seed, 600.0):
        there = {place.name for place in PLACES}
        going_on: set[tuple[str, str, str]] = set()
        for event in act.events:
            if event.kind == "vanishes":
                there.remove(event.target)
            elif event.kind == "appears":
                assert event.target not in there
                there.add(event.target)
            elif event.track == "services":
                assert event.target in there
            elif event.kind.startswith("end of "):
                going_on.remove((event.track, event.target, event.kind.removeprefix("end of ")))
            elif event.track in ("pods", "api"):
                assert not any(track == event.track and target == event.target for track, target, _ in going_on)
                going_on.add((event.track, event.target, event.kind))


def test_a_long_run_sees_everything_and_its_end_has_the_same_processes() -> None:
    *upheavals, warming_up, endurance = acts(1, 3600.0)
    assert len(upheavals) == 5
    events = [event for act in upheavals for event in act.events]
    wanted = {
        "process": (*PROCESS, *KERNEL_PROCESS),
        "api": API,
        "pods": set(FAULTS) - {"flap"},  # a few refusals
        "netfilter": (*NETFILTER, *KERNEL_NETFILTER),
        "rescue": RESCUE,
    }
    for track, kinds in wanted.items():
        assert {event.kind for event in events if event.track == track} >= set(kinds)
    late = {event.kind for act in (warming_up, endurance) for event in act.events if event.track == "process"}
    assert late == set(KERNEL_PROCESS), "none replaces the control process"


def test_the_seed_chooses_the_data_paths() -> None:
    assert {first_path(seed) for seed in range(20)} == set(PATHS)
    assert {acts(seed, 60.0)[0].data_path for seed in range(20)} == set(PATHS)
    for seed in range(20):
        _, warming_up, endurance = acts(seed, 60.0)
        assert warming_up.data_path == endurance.data_path != "userspace", "memory is compared"


def test_services_spread_their_clients_in_every_way() -> None:
    *upheavals, warming_up, endurance = acts(1, 600.0)
    events = [event for act in upheavals for event in act.events if event.track == "services"]
    assert {event.balance.scheduler for event in events} == set(Scheduler)
    assert {event.balance.slow_start_s > 1 for event in events} == {True, False}
    assert {event.balance.weights[0] == event.balance.weights[1] for event in events} == {True, False}
    for act in upheavals:
        assert {balance.scheduler for balance in act.balances.values()} == set(Scheduler), "each is looked at"
    assert warming_up.balances == endurance.balances, "memory is compared"


def test_a_run_with_the_userspace_path_alone_has_nothing_of_the_kernel_path() -> None:
    for act in acts(1, 1800.0, both_paths=False):
        kinds = {event.kind for event in act.events}
        assert not kinds & {*KERNEL_PROCESS, *KERNEL_NETFILTER, *RESCUE}
        assert act.data_path == "userspace"
