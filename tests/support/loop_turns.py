"""Turns of the event loop, counted: whether other tasks run during a long one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Turns:
    """How often a task that always waits for its next turn has run."""

    count: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Counts until the end of the block."""
    turns = Turns()

    async def run() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    try:
        yield turns
    finally:
        task.cancel()
