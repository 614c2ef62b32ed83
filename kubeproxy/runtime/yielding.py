"""Long work in one event loop with others: every so often they get their turn."""

from __future__ import annotations

import asyncio
from time import monotonic


class TimeSlice:
    """Counts by time, not by pieces of work: one object may be a hundred times as large as another."""

    def __init__(self, slice_s: float) -> None:
        """`slice_s`: how long others may have to wait, in seconds, beside the longest single piece."""
        self._slice_s = slice_s
        self._end = 0.0

    async def offer(self) -> None:
        """Between two pieces of work: let others go first if it is time."""
        if monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = monotonic() + self._slice_s
