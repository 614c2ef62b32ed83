"""Background tasks with names, whose exceptions are always reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskSet:
    """The background tasks of one owner, which cancels them when it ends.

    `on_crash` is called with the name and the exception of a task that raises, so that no task fails unnoticed even if
    no code awaits it.
    """

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run a coroutine as a background task, and return the task."""
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251 - the one place
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def first_of(self, *ends: Coroutine[Any, Any, Any]) -> None:
        """Run these coroutines as tasks, and return when the first of them ends. The others continue."""
        waiting = [self.start(end, name="end") for end in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(task.get_name(), error)

    async def end(self, *tasks: asyncio.Task[Any]) -> None:
        """Cancel these tasks, and wait until they have ended."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all running tasks, and wait until they have ended."""
        await self.end(*self._tasks)
