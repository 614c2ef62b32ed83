"""The budget of file descriptors.

The data plane counts its descriptors, and stops accepting before the kernel would return EMFILE. Then clients wait in
the listen queue, and the process can still work. A listener that was refused descriptors is called back when some are
free again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

RESERVE = 64
"""The number of descriptors reserved for everything else in the process: connections to the API server, logs, epoll,
pipes of subprocesses."""


AT_LEAST = 16
"""How many descriptors a tightened budget still allows beyond those in use."""


class Tenant:
    """How much of the last quarter of a budget the frontends of one tenant hold together (see `DescriptorBudget`)."""

    __slots__ = ("__weakref__", "extra")

    def __init__(self) -> None:
        self.extra = 0


class Share:
    """How much of a budget the clients of one frontend hold."""

    __slots__ = ("extra", "held", "tenant")

    def __init__(self, tenant: Tenant | None = None) -> None:
        """Without a tenant the share counts as a tenant of its own."""
        self.held = 0
        self.extra = 0
        """How many of the descriptors in `held` are from the last quarter."""
        self.tenant = tenant or Tenant()


class DescriptorBudget:
    """Counts descriptors in use against a limit.

    The first three quarters of the descriptors for clients go to any client that comes first. The last quarter is
    rationed, and never used up: of the part that other frontends leave free, a frontend may hold at most half. In the
    same way a tenant may hold at most half of the part that other tenants leave free. So one flooded frontend, many of
    them, or all frontends of one tenant cannot keep the others from being served. A frontend that holds more than an
    equal share of the whole gets nothing of the last quarter. A frontend without clients gets its first client, as long
    as its tenant holds at most three quarters of the part that other tenants leave free.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._whole = limit
        self.used = 0
        self.refusals = 0
        """The number of claims that were refused."""
        self._clients = 0
        """The number of descriptors in use for clients."""
        self._sharers = 0
        """The number of frontends that have clients."""
        self._extra = 0
        """The number of descriptors in use that belong to the last quarter of the budget."""
        self._waiting: dict[Callable[[], None], None] = {}

    @classmethod
    def of_this_process(cls) -> DescriptorBudget:
        """Return a budget of RLIMIT_NOFILE minus `RESERVE`. If the limit is tiny, the budget is three quarters of
        it."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(soft - min(RESERVE, soft // 4))

    def take(self, count: int, share: Share | None = None) -> bool:
        """Claim descriptors, and return whether the claim was granted. `share` belongs to the client's frontend."""
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

    def has_room(self, count: int) -> bool:
        """Return whether `count` descriptors are available, for any share. If not, count a refusal."""
        if self.used + count <= self.limit:
            return True
        self.refusals += 1
        return False

    def take_back(self, count: int, share: Share) -> None:
        """Claim descriptors without a check, for a share that has just returned the same number from another client."""
        if self._is_extra(count):
            self._add_extra(count, share)
        self.used += count
        self._clients += count
        self._sharers += not share.held
        share.held += count

    def _is_extra(self, count: int) -> bool:
        """Return whether another `count` descriptors for clients would be taken from the last quarter."""
        return 4 * (self._clients + count) > 3 * self._room

    @property
    def _room(self) -> int:
        """Return the total number of descriptors for clients, including those in use."""
        return self.limit - self.used + self._clients

    def _fair(self, count: int, share: Share) -> bool:
        """Return whether a share may have `count` more descriptors of the last quarter."""
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
        """Limit new clients to a third of the present number until `loosen` is called, because another resource is
        short. The present clients then count as three quarters of the budget."""
        self.limit = min(self._whole, self.used + max(self._clients // 3, AT_LEAST))

    def loosen(self) -> None:
        """End the effect of `tighten`."""
        self.limit = self._whole

    def take_spare(self, count: int) -> bool:
        """Claim optional descriptors, and return whether the claim was granted. It is refused if more than three
        quarters of the budget are in use."""
        return 4 * (self.used + count) <= 3 * self.limit and self.take(count)

    @property
    def spare(self) -> int:
        """Return how many descriptors are available for connections of another process. A part is left for new
        clients."""
        return max(0, 7 * self.limit // 8 - self.used)

    def give(self, count: int, share: Share | None = None) -> None:
        """Return descriptors to the budget."""
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
        """Call `callback` once, when descriptors have been returned."""
        self._waiting[callback] = None

    def __repr__(self) -> str:
        return f"<DescriptorBudget {self.used} of {self.limit}>"
