"""Lets the event loop run other tasks during long work."""

from __future__ import annotations

import asyncio
from time import monotonic


class TimeSlice:
    """Yields to the event loop after a time slice. It measures time and does not count pieces of work, because some
    take a hundred times as long as others."""

    def __init__(self, slice_s: float) -> None:
        """Begin a slice of `slice_s` seconds. A slice lasts longer if a piece of work does."""
        self._slice_s = slice_s
        self._end = monotonic() + slice_s

    async def offer(self) -> None:
        """If the slice is over, yield to the event loop and begin a new slice. Call this between two pieces of work."""
        if monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = monotonic() + self._slice_s
