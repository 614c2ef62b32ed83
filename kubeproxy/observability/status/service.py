"""Who asks for the status gets it here: looks at everything, remembers a little, and lets the event loop breathe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kubeproxy.model import ServiceName
from kubeproxy.observability.status import build
from kubeproxy.observability.status.document import Incident, ServiceStatus, Status
from kubeproxy.observability.status.history import History
from kubeproxy.observability.status.index import Index, Query, Row
from kubeproxy.observability.status.observation import Candidates, Observation

EVERY_S: Final = 2.0
"""How often a sample is taken while somebody looks."""
INTEREST_S: Final = 60.0
"""How long after the last question samples go on: who comes back meets a history without a gap."""
FRESH_S: Final = 0.9
"""A sight of this age is good enough for another question."""
SLICE: Final = 25
"""Services described between two breaths of the loop."""


class StatusService:
    """`look` sees everything as of now; `run` keeps samples coming as long as somebody is interested."""

    def __init__(
        self,
        *,
        look: Callable[[], Awaitable[Observation]],
        candidates: Candidates,
        recent_warnings: Callable[[], Sequence[Incident]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._candidates = candidates
        self._recent_warnings = recent_warnings
        self._clock = clock
        self._history = History(gap_s=5 * EVERY_S)
        self._index: Index | None = None
        self._names: list[ServiceName] | None = None
        self._looked_at = float("-inf")
        self._asked_at = float("-inf")
        self._asked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Take samples while somebody is interested, until cancelled."""
        while True:
            await self._asked.wait()
            if self._clock() - self._asked_at > INTEREST_S:
                self._asked.clear()
                continue
            await self._fresh(0.0, sample=True)
            await asyncio.sleep(EVERY_S)

    async def ask(self, query: Query) -> tuple[Status, AsyncIterator[ServiceStatus]]:
        """The status without Services, and the Services one by one."""
        self._asked_at = self._clock()
        self._asked.set()
        index = await self._fresh(FRESH_S)
        fitting: list[Row] = []
        for found in index.select(query, self._history):
            if found is None:
                await asyncio.sleep(0)
            else:
                fitting = found
        head = build.status(
            index,
            query,
            matched=len(fitting),
            history=self._history,
            recent_warnings=self._recent_warnings(),
            every_s=EVERY_S,
        )
        end = None if query.limit is None else query.offset + query.limit
        return head, self._services(fitting[query.offset : end], index, port=query.service.partition(":")[2])

    async def whole(self, query: Query) -> Status:
        """The status with its Services."""
        head, services = await self.ask(query)
        return replace(head, services=tuple([service async for service in services]))

    async def _services(self, rows: Sequence[Row], index: Index, *, port: str) -> AsyncIterator[ServiceStatus]:
        for number, row in enumerate(rows, 1):
            yield build.service(row, index.sight, port=port, history=self._history, candidates=self._candidates)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def _fresh(self, age_s: float, *, sample: bool = False) -> Index:
        """The index, at most `age_s` seconds old. Samples are taken at a steady pace, so not for every question."""
        async with self._one_at_a_time:
            if self._index is None or self._clock() - self._looked_at >= age_s:
                sight = await self._look()
                index = Index(sight)
                await _breathe(index.fill(self._names))
                if sample:
                    await _breathe(self._history.add(sight.counters, sight.now))
                self._index, self._names, self._looked_at = index, index.names, self._clock()
            return self._index


async def _breathe(work: Iterator[None]) -> None:
    for _ in work:
        await asyncio.sleep(0)
