"""Lets SIGINT and SIGTERM interrupt a command."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Final, Self

SIGNALLED: Final = 128
"""The number that shells add to a signal's number to get the exit status of an interrupted command."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context manager that handles SIGINT and SIGTERM. The first signal ends `wait`, so that the command can end in
    an orderly way. The second signal ends the process at once."""

    def __init__(self) -> None:
        self.signal = signal.SIGINT
        """The signal that has interrupted the command, once there was one."""
        self._came = asyncio.Event()

    @property
    def status(self) -> int:
        """Return the exit status of the interrupted command."""
        return SIGNALLED + self.signal

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._came.wait()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._note, number)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def _note(self, number: signal.Signals) -> None:
        self.signal = number
        asyncio.get_running_loop().remove_signal_handler(number)
        self._came.set()
