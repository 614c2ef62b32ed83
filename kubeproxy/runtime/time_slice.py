"""Lets an event loop run other work during a long task."""

from __future__ import annotations

import asyncio
from time import monotonic


class TimeSlice:
    """Yields to the loop by elapsed time, because one piece of work may take a hundred times as long as another."""

    def __init__(self, slice_s: float) -> None:
        """Begin a slice. `slice_s` is the time between two yields, to which one longer piece of work may add."""
        self._slice_s = slice_s
        self._end = monotonic() + slice_s

    async def offer(self) -> None:
        """Yield if the slice is over. Call this between two pieces of work."""
        if monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = monotonic() + self._slice_s
