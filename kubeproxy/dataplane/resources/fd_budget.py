"""Budget of file descriptors.

The data plane counts its descriptors and stops accepting before the kernel returns EMFILE: a client then waits in the
listen queue, and the process stays able to work. A listener that got none is called back when some are free again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

RESERVE = 64
"""Descriptors for all else in the process: the API server's connections, logs, epoll, subprocesses' pipes."""


AT_LEAST = 16
"""Descriptors that a tightened budget allows at least, beyond those in use."""


class Share:
    """The part of a budget that one frontend's clients hold."""

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
        """Claims that were refused."""
        self._clients = 0
        """Descriptors in use by clients."""
        self._sharers = 0
        """Frontends that have clients."""
        self._waiting: dict[Callable[[], None], None] = {}

    @classmethod
    def of_this_process(cls) -> DescriptorBudget:
        """A budget of RLIMIT_NOFILE less `RESERVE` (or less a quarter, where the limit is tiny)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(soft - min(RESERVE, soft // 4))

    def take(self, count: int, share: Share | None = None) -> bool:
        """Claim descriptors; False when there are not enough, or not for this share. `share`: of the client's
        frontend."""
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
        """Limit new clients to a third of the present ones until `loosen`.

        For a shortage of something else. The present clients then fill three quarters of the budget."""
        self.limit = min(self._whole, self.used + max(self._clients // 3, AT_LEAST))

    def loosen(self) -> None:
        """End `tighten`: all descriptors may be used again."""
        self.limit = self._whole

    def take_spare(self, count: int) -> bool:
        """Claim optional descriptors; False when more than three quarters are in use."""
        return 4 * (self.used + count) <= 3 * self.limit and self.take(count)

    def give(self, count: int, share: Share | None = None) -> None:
        """Return descriptors to the budget."""
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
        """Call once, when descriptors have been returned."""
        self._waiting[callback] = None

    def __repr__(self) -> str:
        return f"<DescriptorBudget {self.used} of {self.limit}>"
