"""Translates the annotations about spreading clients over endpoints: scheduler, slow start and weight.

With a faulty annotation, the Service is still served. The fault is also a remark of the Service, which becomes an
Event, because the Service's author does not read the logs of nodes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault, show
from kubeproxy.model import MAX_WEIGHT, Scheduler
from kubeproxy.sources.translate.validation import allowed

LONGEST_SLOW_START_S = 3600
"""The longest slow start, in seconds. A longer slow start would outlast the time between two rollouts."""
_DURATION = re.compile(r"(?:([0-9]{1,3})m)?(?:([0-9]{1,5})s)?", re.ASCII)
_WEIGHT = re.compile(r"[0-9]{1,3}", re.ASCII)


class Wishes(NamedTuple):
    """The settings in a Service's annotations."""

    scheduler: Scheduler | None = None
    slow_start_s: int = 0
    remarks: tuple[str, ...] = ()


def wishes_of(annotations: api_types.Annotations | None, faults: list[Fault]) -> Wishes:
    """Return the settings in a Service's annotations. Invalid values become faults, and the defaults are used."""
    if annotations is None or (annotations.scheduler is None and annotations.slow_start is None):
        return Wishes()
    found: list[Fault] = []
    scheduler = _scheduler(annotations.scheduler, found)
    slow_start_s = _slow_start(annotations.slow_start, found)
    faults += found
    return Wishes(scheduler, slow_start_s, tuple(map(str, found)))


def weight_of(annotations: api_types.Annotations | None, faults: list[Fault]) -> int:
    """Return the weight in an EndpointSlice's annotations, or 1 if it is absent or invalid."""
    text = None if annotations is None else annotations.weight
    if text is None:
        return 1
    if _WEIGHT.fullmatch(text) and 1 <= int(text) <= MAX_WEIGHT:
        return int(text)
    faults.append(
        Fault("metadata.annotations[kubeproxy/weight]", f"{show(text)}; allowed: 1 to {MAX_WEIGHT}. 1 is used")
    )
    return 1


def _scheduler(text: str | None, faults: list[Fault]) -> Scheduler | None:
    if text is None:
        return None
    try:
        return Scheduler(text)
    except ValueError:
        path = "metadata.annotations[kubeproxy/scheduler]"
        faults.append(Fault(path, f"{show(text)}; {allowed(Scheduler)}. The default of the node is used"))
        return None


def _slow_start(text: str | None, faults: list[Fault]) -> int:
    if text is None:
        return 0
    match = _DURATION.fullmatch(text)
    if match is not None and (match[1] or match[2]):
        seconds = 60 * int(match[1] or 0) + int(match[2] or 0)
        if 0 <= seconds <= LONGEST_SLOW_START_S:
            return seconds
    path = "metadata.annotations[kubeproxy/slow-start]"
    faults.append(Fault(path, f"{show(text)}; allowed: 0s to {LONGEST_SLOW_START_S // 60}m, like 30s. None is used"))
    return 0
