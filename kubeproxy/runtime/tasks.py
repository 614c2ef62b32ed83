"""Background tasks: kept, named, and never lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskSet:
    """Tasks that belong to one owner and end with it.

    `on_crash` receives the name and the exception of a task that ends with an exception, so that a task that no code
    awaits cannot fail unnoticed.
    """

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a coroutine in the background."""
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251 - the one place
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def first_of(self, *ends: Coroutine[Any, Any, Any]) -> None:
        """Return when the first of these tasks ends. The others continue."""
        waiting = [self.start(end, name="end") for end in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(task.get_name(), error)

    async def end(self, *tasks: asyncio.Task[Any]) -> None:
        """Cancel these tasks and wait for their end."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all running tasks and wait for their end."""
        await self.end(*self._tasks)
