"""Waits for a condition beside an event loop's other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Wait until a condition is true. Raise AssertionError after `within_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not condition():
        assert loop.time() < end, f"{condition} did not come true within {within_s} s"
        await asyncio.sleep(0.005)
