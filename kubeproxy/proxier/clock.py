"""Time, so that tests need not wait for it."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that one can wait with."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    async def wait(self, event: asyncio.Event, until: float) -> None:
        """Back when the event is set, or at that time (infinity: not before the event)."""


class LoopClock:
    """The running event loop's clock."""

    def now(self) -> float:
        """Seconds, as the loop counts them."""
        return asyncio.get_running_loop().time()

    async def wait(self, event: asyncio.Event, until: float) -> None:
        """Back when the event is set, or at that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == math.inf else until):
                await event.wait()
