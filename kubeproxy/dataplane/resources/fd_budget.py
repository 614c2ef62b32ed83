"""Descriptors are a budget, not an accident.

The data plane knows how many it may use and stops accepting before the kernel says EMFILE: a client then waits in the
listen queue instead of costing the process its life. Whoever was turned away is called when there is room again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

RESERVE = 64
"""Left to everything else in the process: the API server's connections, logs, epoll, subprocesses' pipes."""


AT_LEAST = 16
"""How many more may be in use however few clients are there, when the budget is tightened."""


class Share:
    """What one frontend's clients have of a budget."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class DescriptorBudget:
    """Counts descriptors in use against a limit.

    Three quarters of what is there for clients are whoever's comes first. Of the last quarter nobody gets more than a
    fair part: a frontend that is flooded fills the three quarters, and the others still have something.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._whole = limit
        self.used = 0
        self.refusals = 0
        """How often somebody was turned away."""
        self._clients = 0
        """In use by clients."""
        self._sharers = 0
        """Frontends that have clients."""
        self._waiting: dict[Callable[[], None], None] = {}

    @classmethod
    def of_this_process(cls) -> DescriptorBudget:
        """What RLIMIT_NOFILE allows, less `RESERVE` (or a quarter, where the limit is tiny)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(soft - min(RESERVE, soft // 4))

    def take(self, count: int, share: Share | None = None) -> bool:
        """Claim descriptors, for a client of whose share they are if one is given; False when there are not so many
        left, or not for this one."""
        if self.used + count > self.limit or (share is not None and not self._fair(count, share)):
            self.refusals += 1
            return False
        self.used += count
        if share is not None:
            self._clients += count
            self._sharers += not share.held
            share.held += count
        return True

    def _fair(self, count: int, share: Share) -> bool:
        room = self.limit - self.used + self._clients
        if 4 * (self._clients + count) <= 3 * room or not share.held:
            return True
        # One part is for who is not here yet.
        return share.held + count <= room // (self._sharers + 1)

    def tighten(self) -> None:
        """Until `loosen`, no more new clients than a third of those who are there, who fill three quarters then:
        something else than descriptors is short."""
        self.limit = min(self._whole, self.used + max(self._clients // 3, AT_LEAST))

    def loosen(self) -> None:
        """All descriptors may be used again."""
        self.limit = self._whole

    def take_spare(self, count: int) -> bool:
        """Claim descriptors that one can do without, if nobody is likely to miss them."""
        return 4 * (self.used + count) <= 3 * self.limit and self.take(count)

    def give(self, count: int, share: Share | None = None) -> None:
        """Give descriptors back."""
        self.used -= count
        if share is not None:
            self._clients -= count
            share.held -= count
            self._sharers -= not share.held
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Call once, when something has been given back."""
        self._waiting[callback] = None

    def __repr__(self) -> str:
        return f"<DescriptorBudget {self.used} of {self.limit}>"
