"""Lets an event loop run other work during a long task."""

from __future__ import annotations

import asyncio
from time import monotonic


class TimeSlice:
    """Yields to the loop by elapsed time, since one piece of work may be a hundred times another."""

    def __init__(self, slice_s: float) -> None:
        """Begin a slice. `slice_s` is the time between two yields; one longer piece of work adds to it."""
        self._slice_s = slice_s
        self._end = monotonic() + slice_s

    async def offer(self) -> None:
        """Yield if the slice is over. Call between two pieces of work."""
        if monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = monotonic() + self._slice_s
