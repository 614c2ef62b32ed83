"""Runs blocking work in threads that do not delay the exit of the process."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")

BEGIN_S = 10.0
"""A thread that has not begun to run after this time in seconds counts as failed."""


class ThreadNotStartedError(MemoryError):
    """Raised if a thread could not start, because there was no memory or a limit on processes was reached. The work was
    not begun."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, and return its result. Raise ThreadNotStartedError if the thread could not start.

    asyncio.to_thread is not used, because at exit Python waits for an executor's threads. Neither a read of standard
    input nor the parsing of fifty megabytes can be interrupted.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T has it

    begun = False

    def run() -> None:
        nonlocal begun
        begun = True
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    # threading.Thread is not used, because its start() waits until the thread runs. If the thread had no memory for
    # that, the whole process would wait forever.
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as error:
        raise ThreadNotStartedError(
            f"{error}; raise the limit on processes (ulimit -u, TasksMax=) or on memory"
        ) from None
    try:
        await asyncio.wait((future,), timeout=BEGIN_S)
    except asyncio.CancelledError:
        future.cancel()  # The result is no longer needed.
        raise
    if not begun:
        future.cancel()
        raise ThreadNotStartedError("no memory for a new thread")
    return await future


async def imported(*modules: str) -> None:
    """Import modules in a thread, so that the event loop continues. Do nothing if no thread can start; the caller then
    imports them itself.

    On a busy node imports take seconds. If they blocked the event loop, the rescue process would take the daemon for
    dead.
    """

    def work() -> None:
        for module in modules:
            import_module(module)

    with contextlib.suppress(ThreadNotStartedError):
        await in_thread(work)
