"""Holds the drain requests of all Services: which of them are valid now, and which were last in effect.

`ProxierState` owns this. Endpoints are marked as draining once, when their Service is resolved, and all other parts
read the marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from kubeproxy.model import EndpointSlice, Frontend, Service, ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.drain_request import DrainRequests
from kubeproxy.proxier.drained_endpoints import drain_state, drained
from kubeproxy.proxier.resolution_times import ResolutionTimes

EXPIRY_STEP_S: Final = 10.0
"""A request that takes effect or expires later does so at the next multiple of this number of seconds. So a thousand
requests that end one after the other do not resolve their Service a thousand times. Well-behaved rollouts withdraw a
request themselves when they no longer need it."""


class Drains:
    """The drain requests, and which of them are in effect. Times are Unix seconds."""

    def __init__(self) -> None:
        self._on = False
        self._now = 0.0
        self._requests: dict[ServiceName, DrainRequests] = {}
        """The valid requests of each Service that has some."""
        self._slices: dict[ServiceName, tuple[EndpointSlice, ...]] = {}
        """The slices of each Service with valid requests. The draining endpoints in them are marked."""
        self._states: dict[ServiceName, DrainState] = {}
        """For each Service whose requests have been in effect, the state that was reported last."""
        self._undetermined: dict[ServiceName, None] = {}
        """The Services that have changed since their requests were last in effect."""
        self._times = ResolutionTimes()

    def use(self, on: bool) -> None:
        """Set whether requests have an effect. Afterwards the caller has to resolve the Services with requests
        again."""
        self._on = on

    def advance(self, now: float) -> list[ServiceName]:
        """Set the time. Return the Services that have to be resolved again, because requests have taken effect or
        expired."""
        self._now = now
        return self._times.take(now)

    @property
    def next_change(self) -> float | None:
        """Return the next time at which `advance` has Services to return, or None if there is none."""
        return self._times.next

    def note(self, name: ServiceName, service: Service | None) -> None:
        """Record the requests of a Service that is being resolved. None means that the Service was deleted."""
        requests = None if service is None or not self._on else service.drain
        change = None if requests is None else requests.next_change(self._now)
        self._times.set(name, None if change is None else math.ceil(change / EXPIRY_STEP_S) * EXPIRY_STEP_S)
        if requests is None or not requests.active(self._now):
            for book in (self._requests, self._slices, self._states, self._undetermined):
                book.pop(name, None)
        else:
            self._requests[name] = requests
            self._undetermined[name] = None

    def applied(self, name: ServiceName, slices: tuple[EndpointSlice, ...]) -> tuple[EndpointSlice, ...]:
        """Return the slices of a Service that is being resolved, with the requested endpoints marked as draining."""
        requests = self._requests.get(name)
        if requests is None:
            return slices
        self._slices[name] = drained(slices, requests, self._now)
        return self._slices[name]

    def slices(self, name: ServiceName) -> tuple[EndpointSlice, ...] | None:
        """Return the slices that `applied` returned last, or None if the Service has no requests."""
        return self._slices.get(name)

    def states(
        self, in_effect: Callable[[ServiceName], bool], frontends: Callable[[ServiceName], Iterable[Frontend]]
    ) -> dict[ServiceName, DrainState]:
        """Return the state of each Service's requests."""
        for name in [name for name in self._undetermined if in_effect(name)]:
            del self._undetermined[name]
            self._states[name] = drain_state(
                self._requests[name], self._now, slices=self._slices.get(name, ()), frontends=frontends(name)
            )
        return self._states.copy()
