"""Decides when the next netfilter transaction is due, and when a failed one is retried. Time and random numbers are
arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kubeproxy.runtime.backoff import DoublingBackoff

QUICK_ROUNDS = 4
"""How many transactions need not wait for one another after a time of rest. A new Service causes two to four changes
some milliseconds apart: the Service, a slice of each family, and its first ready endpoint. kube-proxy had a burst of
two, and its newer versions have none."""
RETRY_FIRST_S = 0.5
RETRY_LIMIT_S = 30.0
FOREIGN_CHANGE_LIMIT_S = 2.0
"""The longest time until another process's change of our rules is undone, however often it makes one. Clients are lost
all that time, and restoring ten thousand Services takes less than half a second of a core."""
RETRY_JITTER = 0.25
"""The largest part of a delay that is added at random, so that many nodes do not retry in step."""


@dataclass(frozen=True, slots=True)
class Periods:
    """How often netfilter transactions are made; the defaults are kube-proxy's."""

    min_sync_s: float = 1.0
    """The time from the end of one transaction to the start of the next, on average over more than QUICK_ROUNDS of
    them."""
    sync_s: float = 30.0
    """The longest time from one full sync, which reads the rules in the kernel, to the next."""


class Backoff:
    """Computes the time of the next try after failures in a row. Delays double from RETRY_FIRST_S to RETRY_LIMIT_S."""

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
    """The pace of netfilter transactions. QUICK_ROUNDS may be made at once, later ones `min_sync_s` apart. A full sync
    is due every `sync_s`, and failures are retried with backoff.

    Each `min_sync_s` without a transaction allows for one more at once. A change that comes after a failure does not
    wait for the backoff, because it may be the cure. It waits as any change does. A change of our rules by another
    process is looked at just as soon.
    """

    def __init__(self, periods: Periods, jitter: Callable[[], float]) -> None:
        self.periods = periods
        self._backoff = Backoff(jitter)
        self._ended_at = -math.inf
        self._full_at = -math.inf
        self._debt = 0.0
        """The number of transactions as of `_ended_at`, less one for each `min_sync_s` since then. It is at most
        QUICK_ROUNDS. So retries and looks at the kernel, which do not wait, never make a change wait longer than
        `min_sync_s`."""
        self._certain = False
        """Whether the last transaction succeeded. Otherwise the state of the kernel is unknown."""
        self._check_at = math.inf
        self._checked_at = -math.inf
        self._check_delay_s = RETRY_FIRST_S

    @property
    def failures(self) -> int:
        """Return how many transactions failed in a row."""
        return self._backoff.failures

    def next_at(self, *, pending: bool, new: bool) -> float:
        """Return when the next transaction is due. `pending` is true if the kernel lacks a change, and `new` if this
        change has not been tried yet."""
        due = [self._check_at, self._backoff.retry_at if self.failures else self._full_at + self.periods.sync_s]
        if new or ((pending or not self._certain) and not self.failures):
            due.append(self._ended_at + max(0.0, self._debt + 1 - QUICK_ROUNDS) * self.periods.min_sync_s)
        return min(due)

    def full_due(self, now: float) -> bool:
        """Return whether a transaction that starts now has to read the rules in the kernel."""
        return not self._certain or now >= min(self._full_at + self.periods.sync_s, self._check_at)

    def require_full_sync(self) -> None:
        """Require a full sync, whatever failed before, because the state of the kernel is unknown."""
        self._check_at = -math.inf

    def foreign_change(self, now: float) -> None:
        """Require a full sync, because another process has changed our rules. The sync is due at once the first time,
        and a little later while the changes continue (up to FOREIGN_CHANGE_LIMIT_S). So two processes that disagree do
        not keep a core busy."""
        if self._check_at < math.inf:
            return
        if now >= self._checked_at + RETRY_LIMIT_S:
            self._check_delay_s = RETRY_FIRST_S
        self._check_at = max(now, self._checked_at + self._check_delay_s)

    def started(self, now: float, *, full: bool) -> None:
        """Note that a transaction begins. Until its end the state of the kernel is unknown."""
        self._certain = False
        if full and now >= self._check_at:
            self._checked_at, self._check_at = now, math.inf
            self._check_delay_s = min(2 * self._check_delay_s, FOREIGN_CHANGE_LIMIT_S)

    def succeeded(self, now: float, *, full: bool) -> None:
        """Note that a transaction succeeded."""
        self._backoff.reset()
        self._certain = True
        self._ended(now)
        if full:
            self._full_at = now

    def failed(self, now: float) -> None:
        """Note that a transaction failed."""
        self._backoff.failed(now)
        self._ended(now)

    def _ended(self, now: float) -> None:
        period_s = self.periods.min_sync_s
        allowed = (now - self._ended_at) / period_s if period_s else math.inf
        self._debt = min(max(0.0, self._debt - allowed) + 1, QUICK_ROUNDS)
        self._ended_at = now
