"""Answers the queries of ``kubeproxy status`` and the status page from a recent observation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kubeproxy.model import ServiceName
from kubeproxy.observability.status import build
from kubeproxy.observability.status.document import RecentWarning, ServiceStatus, Status
from kubeproxy.observability.status.observation import Candidates, Observation
from kubeproxy.observability.status.service_index import Index, Query, Row, named, split_port
from kubeproxy.observability.status.traffic_history import History
from kubeproxy.runtime.time_slice import TimeSlice

SAMPLE_S: Final = 2.0
"""The number of seconds between two samples while queries arrive."""
KEEP_SAMPLING_S: Final = 60.0
"""For how many seconds samples continue after the last query, so that the next query finds a history without a gap."""
FRESH_S: Final = 0.9
"""For how many seconds an observation is used for further queries."""
SLICE_S: Final = 0.002
"""How many seconds of work are done between two yields to the event loop."""


class StatusService:
    """Answers queries. `run` takes samples while queries arrive. `look` is a function that makes an observation."""

    def __init__(
        self,
        *,
        look: Callable[[], Awaitable[Observation]],
        candidates: Candidates,
        recent_warnings: Callable[[], Sequence[RecentWarning]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._candidates = candidates
        self._recent_warnings = recent_warnings
        self._clock = clock
        self._history = History(gap_s=5 * SAMPLE_S)
        self._index: Index | None = None
        self._names: list[ServiceName] | None = None
        self._looked_at = float("-inf")
        self._queried_at = float("-inf")
        self._queried = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Take samples while queries arrive, until cancelled."""
        while True:
            await self._queried.wait()
            if self._clock() - self._queried_at > KEEP_SAMPLING_S:
                self._queried.clear()
                continue
            await self._fresh(0.0, sample=True)
            await asyncio.sleep(SAMPLE_S)

    async def ask(self, query: Query) -> tuple[Status, AsyncIterator[ServiceStatus]]:
        """Return the status without its Services, and an iterator over the selected Services."""
        self._queried_at = self._clock()
        self._queried.set()
        index = await self._fresh(FRESH_S)
        matched: list[Row] = []
        time_slice = TimeSlice(SLICE_S)
        for selected in index.select(query, self._history):
            if selected is None:
                await time_slice.offer()
            else:
                matched = selected
        head = build.status(
            index,
            query,
            matched=len(matched),
            history=self._history,
            recent_warnings=self._recent_warnings(),
            interval_s=SAMPLE_S,
        )
        end = None if query.limit is None else query.offset + query.limit
        return head, self._services(matched[query.offset : end], index, port=_port_of(query, matched))

    async def whole(self, query: Query) -> Status:
        """Return the status with the selected Services."""
        head, services = await self.ask(query)
        return replace(head, services=tuple([service async for service in services]))

    async def _services(self, rows: Sequence[Row], index: Index, *, port: str) -> AsyncIterator[ServiceStatus]:
        time_slice = TimeSlice(SLICE_S)
        for row in rows:
            yield build.service(row, index.observation, port=port, history=self._history, candidates=self._candidates)
            await time_slice.offer()

    async def _fresh(self, age_s: float, *, sample: bool = False) -> Index:
        """Return an index that is at most `age_s` seconds old. With `sample`, a new observation is also added to the
        history."""
        async with self._one_at_a_time:
            if self._index is None or self._clock() - self._looked_at >= age_s:
                observation = await self._look()
                index = Index(observation)
                await _run(index.fill(self._names))
                if sample:
                    await _run(self._history.add(observation.counters, observation.now))
                self._index, self._names, self._looked_at = index, index.names, self._clock()
            return self._index


def _port_of(query: Query, matched: Sequence[Row]) -> str:
    """Return the port of a Service that the query names, or an empty text. The port of ``IP:PORT`` does not count."""
    name, port = split_port(query.service)
    return port if all(named(row, name) for row in matched) else ""


async def _run(work: Iterator[None]) -> None:
    """Run an iterator to its end, and let the event loop run after each of its slices."""
    time_slice = TimeSlice(SLICE_S)
    for _ in work:
        await time_slice.offer()
