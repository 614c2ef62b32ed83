"""An event loop with a clock that jumps to the next timer: ten minutes of a scenario take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_760_000_000.0
"""Unix seconds at loop time 0."""


class _Selector(selectors.SelectSelector):
    """Never waits: reports how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return []  # There is work to do: descriptors can wait for its end, and a call of the kernel is saved.
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits for something that will never happen")
            self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time advances only while nothing is to be done."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.skipped


class _Wall:
    """By how much the time of day was set forward or back."""

    jumped_s = 0.0


def jump(seconds: float) -> None:
    """The time of day is set forward (or, negative, back), until the end of the scenario."""
    _Wall.jumped_s += seconds


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in virtual time."""
    _Wall.jumped_s = 0.0
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


def unix_time() -> float:
    """The time of day in the scenario, in Unix seconds."""
    return EPOCH + _Wall.jumped_s + asyncio.get_running_loop().time()
