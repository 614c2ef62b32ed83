"""The clock of the proxier, which tests replace so that they need not wait."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress


class Clock:
    """The running event loop's clock, on which tasks can wait. Tests advance a clock of their own."""

    def now(self) -> float:
        """Return the seconds since a fixed moment."""
        return asyncio.get_running_loop().time()

    def unix_now(self) -> float:
        """Return the Unix time, which decides when drain requests expire."""
        return time.time()

    async def wait(self, event: asyncio.Event, until: float) -> None:
        """Wait until the event is set, or until the time `until`. If that is infinity, wait for the event alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == math.inf else until):
                await event.wait()
