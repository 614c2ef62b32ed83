"""Slow start: the share of clients of an endpoint that has just become ready grows linearly.

The share grows in steps, by changes of weights, so it works with every scheduler and on both data paths. When a
frontend is seen for the first time, as at the start of the daemon, none of its endpoints counts as new. If most
endpoints are new, their shares start higher, so that no other endpoint gets more than twice its final share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Final

from kubeproxy.model import Frontend, FrontendName, ServiceName, Target
from kubeproxy.proxier.resolution_times import ResolutionTimes

STEPS: Final = 10
"""The number of steps until an endpoint has its whole share. The first step is made at once."""
MOST_LOAD: Final = 2
"""The highest load of an endpoint that is not new, as a multiple of its final share."""


class SlowStarts:
    """The endpoints whose share is growing. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._now = 0.0
        self._began: dict[ServiceName, dict[FrontendName, dict[Target, float | None]]] = {}
        """For each endpoint of a Service with slow start, when it became ready, or None if it has its whole share."""
        self._steps = ResolutionTimes()

    def advance(self, now: float) -> list[ServiceName]:
        """Set the time. Return the Services that have to be resolved again because a share has grown."""
        self._now = now
        return self._steps.take(now)

    @property
    def next_step(self) -> float | None:
        """Return when a share will grow next, or None if none will."""
        return self._steps.next

    def applied(self, service: ServiceName, slow_start_s: int, frontends: Iterable[Frontend]) -> tuple[Frontend, ...]:
        """Return the frontends of a Service that is being resolved, with weights for the present shares. A
        `slow_start_s` of 0 means no slow start."""
        before, found = self._began.pop(service, {}), tuple(frontends)
        if not slow_start_s or not found:
            self._steps.set(service, None)
            return found
        now = self._began[service] = {it.name: self._times(before.get(it.name), it, slow_start_s) for it in found}
        steps = [
            at + (self._steps_done(at, slow_start_s) + 1) * slow_start_s / STEPS
            for times in now.values()
            for at in times.values()
            if at is not None
        ]
        self._steps.set(service, min(steps, default=None))
        return tuple(self._weighted(it, now[it.name], slow_start_s) for it in found)

    def _times(
        self, before: dict[Target, float | None] | None, frontend: Frontend, slow_start_s: int
    ) -> dict[Target, float | None]:
        times: dict[Target, float | None] = {}
        for target in frontend.endpoints:
            at = before.get(target, self._now) if before else None
            times[target] = None if at is None or self._steps_done(at, slow_start_s) >= STEPS else at
        return times

    def _steps_done(self, at: float, slow_start_s: int) -> int:
        # The small addition prevents rounding from repeating a step that is due.
        return int(STEPS * (self._now - at) / slow_start_s + 1e-4)

    def _weighted(self, frontend: Frontend, times: dict[Target, float | None], slow_start_s: int) -> Frontend:
        if all(at is None for at in times.values()):
            return frontend
        weights = [frontend.balancing.weight_of(number) for number in range(len(frontend.endpoints))]
        new = sum(weight for weight, at in zip(weights, times.values(), strict=True) if at is not None)
        least = (new * (MOST_LOAD - 1) - (sum(weights) - new)) / (MOST_LOAD * new)
        grown = []
        for weight, at in zip(weights, times.values(), strict=True):
            steps = STEPS if at is None else 1 + self._steps_done(at, slow_start_s)
            share = max(steps / STEPS, least)
            grown.append(ceil(STEPS * weight * min(1.0, share) - 1e-9))
        settled = frontend.balancing
        return replace(frontend, balancing=settled._replace(weights=tuple(grown)), settled=settled)
