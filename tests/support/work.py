"""How much work something is, counted and not timed."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Work(NamedTuple):
    """What a call has taken. What is written in C is not counted by its steps, but a copy is by its size."""

    steps: int
    """Executed instructions of Python."""
    bytes: int
    """Memory that was allocated at most, beyond what was there before."""


def work_of(act: Callable[[], T]) -> tuple[T, Work]:
    """Do something; its result, and the work that it was."""
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    tracemalloc.start()
    base, _ = tracemalloc.get_traced_memory()
    sys.settrace(count)
    try:
        result = act()
    finally:
        sys.settrace(before)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return result, Work(steps, peak - base)
