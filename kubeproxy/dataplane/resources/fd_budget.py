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


class Tenant:
    """What the frontends of one tenant have together of a budget's last quarter."""

    __slots__ = ("__weakref__", "extra")

    def __init__(self) -> None:
        self.extra = 0


class Share:
    """What one frontend's clients have of a budget."""

    __slots__ = ("extra", "held", "tenant")

    def __init__(self, tenant: Tenant | None = None) -> None:
        """Without a tenant it is one by itself."""
        self.held = 0
        self.extra = 0
        """Of these, what was taken of the last quarter."""
        self.tenant = tenant or Tenant()


class DescriptorBudget:
    """Counts descriptors in use against a limit.

    Three quarters of what is there for clients go to the first that come. What is taken of the last quarter is counted
    by itself, and always leaves something: a frontend may have half of what other frontends have left of it, and a
    tenant half of what other tenants have left. So neither one flooded frontend, nor many, nor all of one tenant's keep
    the others from being served. A frontend that has more than an equal part of the whole gets nothing of it, and one
    that has no client gets its first as long as its tenant has left others a quarter.
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
        self._extra = 0
        """Taken of the last quarter."""
        self._waiting: dict[Callable[[], None], None] = {}

    @classmethod
    def of_this_process(cls) -> DescriptorBudget:
        """What RLIMIT_NOFILE allows, less `RESERVE` (or a quarter, where the limit is tiny)."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(soft - min(RESERVE, soft // 4))

    def take(self, count: int, share: Share | None = None) -> bool:
        """Claim descriptors, for a client of whose share they are if one is given; False when there are not so many
        left, or not for this one."""
        if self.used + count > self.limit or (
            share is not None and self._is_extra(count) and not self._fair(count, share)
        ):
            self.refusals += 1
            return False
        if share is not None:
            self.take_back(count, share)
        else:
            self.used += count
        return True

    def take_back(self, count: int, share: Share) -> None:
        """Claim for a share what it has given back just now, for another client of its own: whether that is fair has
        been decided before."""
        if self._is_extra(count):
            self._add_extra(count, share)
        self.used += count
        self._clients += count
        self._sharers += not share.held
        share.held += count

    def _is_extra(self, count: int) -> bool:
        """Whether so many more for clients are of the last quarter."""
        return 4 * (self._clients + count) > 3 * self._room

    @property
    def _room(self) -> int:
        """All that is there for clients."""
        return self.limit - self.used + self._clients

    def _fair(self, count: int, share: Share) -> bool:
        """Whether a share may have so much more of the last quarter."""
        room, tenant = self._room, share.tenant
        quarter = room - 3 * room // 4
        left_by_tenants = quarter - self._extra + tenant.extra
        if not share.held:
            return 4 * tenant.extra <= 3 * left_by_tenants
        left_by_shares = quarter - self._extra + share.extra
        return (
            share.held + count <= room // (self._sharers + 1)
            and 2 * (share.extra + count) <= left_by_shares
            and 2 * (tenant.extra + count) <= left_by_tenants
        )

    def _add_extra(self, count: int, share: Share) -> None:
        share.extra += count
        share.tenant.extra += count
        self._extra += count

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
            if share.extra:
                self._add_extra(-min(count, share.extra), share)
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def call_when_free(self, callback: Callable[[], None]) -> None:
        """Call once, when something has been given back."""
        self._waiting[callback] = None

    def __repr__(self) -> str:
        return f"<DescriptorBudget {self.used} of {self.limit}>"
