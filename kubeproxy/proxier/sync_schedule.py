"""Decides when the next netfilter transaction is due, and when a failed one is retried. Time and random numbers are
arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kubeproxy.runtime.backoff import DoublingBackoff

QUICK_ROUNDS = 4
"""After a pause, this many transactions may be made without waiting. A new Service causes two to four changes some
milliseconds apart: the Service, a slice of each family, and its first ready endpoint. kube-proxy allowed a burst of
two, and its newer versions allow none."""
RETRY_FIRST_S = 0.5
RETRY_LIMIT_S = 30.0
FOREIGN_CHANGE_LIMIT_S = 2.0
"""The longest time until a change of our rules by another process is undone, even if that process keeps making changes.
It is short because clients fail during that time. Restoring ten thousand Services takes less than half a second of CPU
time."""
RETRY_JITTER = 0.25
"""The largest fraction of a delay that is added at random, so that many nodes do not retry at the same moment."""


@dataclass(frozen=True, slots=True)
class Periods:
    """The intervals of netfilter transactions in seconds. The defaults are kube-proxy's."""

    min_sync_s: float = 1.0
    """The average time from the end of one transaction to the start of the next, beyond the first QUICK_ROUNDS."""
    sync_s: float = 30.0
    """The longest time between two full syncs, which read the rules in the kernel."""


class Backoff:
    """Computes the time of the next attempt after failures in a row. Delays double from RETRY_FIRST_S to
    RETRY_LIMIT_S."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._delays = DoublingBackoff(first_s=RETRY_FIRST_S, limit_s=RETRY_LIMIT_S)
        self.failures = 0
        self.retry_at = math.inf
        """When to try again, or infinity if nothing has failed."""

    def failed(self, now: float) -> None:
        """Count a failure and set the time of the next attempt."""
        self.failures += 1
        self.retry_at = now + self._delays.next() * (1 + RETRY_JITTER * self._jitter())

    def reset(self) -> None:
        """Forget the failures."""
        self._delays.reset()
        self.failures = 0
        self.retry_at = math.inf


class Schedule:
    """The pace of netfilter transactions. QUICK_ROUNDS may be made at once; later ones are `min_sync_s` apart. A full
    sync is due every `sync_s`, and failures are retried with growing delays.

    Each `min_sync_s` without a transaction allows one more at once. A new change after a failure does not wait for the
    retry, because the change may cure the failure; it waits only like any other change. The repair of our rules after
    another process has changed them waits for neither: `foreign_change` decides when it is due.
    """

    def __init__(self, periods: Periods, jitter: Callable[[], float]) -> None:
        self.periods = periods
        self._backoff = Backoff(jitter)
        self._ended_at = -math.inf
        self._full_at = -math.inf
        self._debt = 0.0
        """The number of recent transactions as of `_ended_at`, minus one for each `min_sync_s` since then. It is at
        most QUICK_ROUNDS. So retries and repairs, which do not wait, never delay a change by more than `min_sync_s`."""
        self._certain = False
        """Whether the last transaction succeeded. If not, the state of the kernel is unknown."""
        self._check_at = math.inf
        self._checked_at = -math.inf
        self._check_delay_s = RETRY_FIRST_S

    @property
    def failures(self) -> int:
        """Return how many transactions in a row have failed."""
        return self._backoff.failures

    def next_at(self, *, pending: bool, new: bool) -> float:
        """Return when the next transaction is due. `pending` tells that the kernel lacks a change, and `new` that this
        change has not been tried yet."""
        due = [self._check_at, self._backoff.retry_at if self.failures else self._full_at + self.periods.sync_s]
        if new or ((pending or not self._certain) and not self.failures):
            due.append(self._ended_at + max(0.0, self._debt + 1 - QUICK_ROUNDS) * self.periods.min_sync_s)
        return min(due)

    def full_due(self, now: float) -> bool:
        """Return whether a transaction that starts now has to read the rules in the kernel (full sync)."""
        return not self._certain or now >= min(self._full_at + self.periods.sync_s, self._check_at)

    def require_full_sync(self) -> None:
        """Require a full sync because the state of the kernel is unknown, even if a retry is pending."""
        self._check_at = -math.inf

    def foreign_change(self, now: float) -> None:
        """Require a full sync because another process has changed our rules. The first time the sync is due at once.
        While changes continue, the delay grows up to FOREIGN_CHANGE_LIMIT_S, so that two processes that disagree do not
        keep a core busy."""
        if self._check_at < math.inf:
            return
        if now >= self._checked_at + RETRY_LIMIT_S:
            self._check_delay_s = RETRY_FIRST_S
        self._check_at = max(now, self._checked_at + self._check_delay_s)

    def started(self, now: float, *, full: bool) -> None:
        """Record that a transaction begins. Until it ends the state of the kernel is unknown."""
        self._certain = False
        if full and now >= self._check_at:
            self._checked_at, self._check_at = now, math.inf
            self._check_delay_s = min(2 * self._check_delay_s, FOREIGN_CHANGE_LIMIT_S)

    def succeeded(self, now: float, *, full: bool) -> None:
        """Record that a transaction succeeded."""
        self._backoff.reset()
        self._certain = True
        self._ended(now)
        if full:
            self._full_at = now

    def failed(self, now: float) -> None:
        """Record that a transaction failed."""
        self._backoff.failed(now)
        self._ended(now)

    def _ended(self, now: float) -> None:
        period_s = self.periods.min_sync_s
        allowed = (now - self._ended_at) / period_s if period_s else math.inf
        self._debt = min(max(0.0, self._debt - allowed) + 1, QUICK_ROUNDS)
        self._ended_at = now
