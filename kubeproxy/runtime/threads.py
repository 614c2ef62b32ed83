"""Runs blocking work in a thread that does not delay the end of the process."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")

BEGIN_S = 10.0
"""For how many seconds the start of a thread is awaited. A thread that takes longer is considered lost."""


class ThreadNotStartedError(MemoryError):
    """Raised if no thread could start, because memory was short or a limit on processes was reached. No work was
    done."""


async def in_thread(work: Callable[[], T]) -> T:
    """Do `work` in a thread of its own and return its result. Raise ThreadNotStartedError if the thread could not
    begin.

    asyncio.to_thread is not used, because Python waits for an executor's threads at exit, and neither a read of
    standard input nor the parsing of fifty megabytes can be interrupted.
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

    # threading.Thread is not used, because its start() waits until the thread reports that it runs. A thread without
    # memory for that would block the whole process forever.
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
    """Import modules while the event loop goes on. If there is no thread, the caller's own import does the work.

    On a busy node imports take seconds, in which a blocked loop could not keep the rescue alive.
    """

    def work() -> None:
        for module in modules:
            import_module(module)

    with contextlib.suppress(ThreadNotStartedError):
        await in_thread(work)
