"""Holds the times at which Services have to be resolved again, in a heap with one time per Service."""

from __future__ import annotations

import heapq

from kubeproxy.model import ServiceName


class ResolutionTimes:
    """The next time for each Service. Any clock may be used."""

    def __init__(self) -> None:
        self._at: dict[ServiceName, float] = {}
        self._heap: list[tuple[float, ServiceName]] = []
        """The heap. It may contain outdated entries, whose time is not that in `_at`."""

    def set(self, name: ServiceName, at: float | None) -> None:
        """Set the time of a Service, or remove it if `at` is None."""
        if self._at.get(name) == at:
            return
        if at is None:
            del self._at[name]
        else:
            self._at[name] = at
            heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, name) for name, at in self._at.items()]
            heapq.heapify(self._heap)

    def take(self, now: float) -> list[ServiceName]:
        """Remove and return the Services whose time has come, the earliest first."""
        taken = []
        while (at := self.next) is not None and at <= now:
            _, name = heapq.heappop(self._heap)
            del self._at[name]
            taken.append(name)
        return taken

    @property
    def next(self) -> float | None:
        """Return the earliest time, or None if there are no times."""
        while self._heap:
            at, name = self._heap[0]
            if self._at.get(name) == at:
                return at
            heapq.heappop(self._heap)
        return None
