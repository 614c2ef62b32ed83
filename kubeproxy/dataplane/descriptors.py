"""Descriptors are a budget, not an accident.

The data plane knows how many it may use and stops accepting before the kernel says EMFILE: a client then waits in the
listen queue instead of costing the process its life. Whoever was turned away is called when there is room again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

RESERVE = 64
"""Left to everything else in the process: the API server's connections, logs, epoll, subprocesses' pipes."""


class DescriptorBudget:
    """Counts descriptors in use against a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.refusals = 0
        """How often somebody was turned away."""
        self._waiting: list[Callable[[], None]] = []

    @classmethod
    def of_this_process(cls) -> DescriptorBudget:
        """What RLIMIT_NOFILE allows, less `RESERVE` (or a quarter, where the limit is tiny)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(soft - min(RESERVE, soft // 4))

    def take(self, count: int) -> bool:
        """Claim descriptors; False when there are not so many left."""
        if self.used + count > self.limit:
            self.refusals += 1
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Give descriptors back."""
        self.used -= count
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Call once, when something has been given back."""
        self._waiting.append(callback)

    def __repr__(self) -> str:
        return f"<DescriptorBudget {self.used} of {self.limit}>"
