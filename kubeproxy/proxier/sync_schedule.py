"""When netfilter may be spoken to next, and when something that failed is tried again. Pure: time is an argument, and
so is chance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kubeproxy.runtime.backoff import DoublingBackoff

RETRY_FIRST_S = 0.5
RETRY_LIMIT_S = 30.0
LOOK_LIMIT_S = 2.0
"""How long somebody else's change of our rules is borne at most, however often they make one: clients are lost all that
time, and putting ten thousand Services right takes less than half a second of a core."""
RETRY_JITTER = 0.25
"""The largest part of a delay by which it is lengthened at random, so that many nodes do not retry in step."""


@dataclass(frozen=True, slots=True)
class Periods:
    """How often netfilter is spoken to; the defaults are kube-proxy's."""

    min_sync_s: float = 1.0
    """The least time from the end of one transaction to the start of the next."""
    sync_s: float = 30.0
    """The most time from one full sync, that looks at what the kernel really has, to the next."""


class Backoff:
    """Time of the next try after failures in a row: delays double from RETRY_FIRST_S to RETRY_LIMIT_S."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._delays = DoublingBackoff(first_s=RETRY_FIRST_S, limit_s=RETRY_LIMIT_S)
        self.failures = 0
        self.retry_at = math.inf
        """When to try again; infinity when nothing failed."""

    def failed(self, now: float) -> None:
        """Once more in vain."""
        self.failures += 1
        self.retry_at = now + self._delays.next() * (1 + RETRY_JITTER * self._jitter())

    def reset(self) -> None:
        """Nothing is failing."""
        self._delays.reset()
        self.failures = 0
        self.retry_at = math.inf


class Schedule:
    """The pace of netfilter transactions: the first change at once, later ones `min_sync_s` apart, a full sync every
    `sync_s`, retries with backoff. What comes after a failure does not wait for the backoff, because it may be the
    cure: a change waits for `min_sync_s` like any other, and what somebody else has done is looked at just as soon."""

    def __init__(self, periods: Periods, jitter: Callable[[], float]) -> None:
        self.periods = periods
        self._backoff = Backoff(jitter)
        self._ended_at = -math.inf
        self._full_at = -math.inf
        self._certain = False
        """Whether the last transaction ended, and ended well: else nobody knows what the kernel has."""
        self._suspect_at = math.inf
        self._looked_at = -math.inf
        self._look_delay_s = RETRY_FIRST_S

    @property
    def failures(self) -> int:
        """Transactions that failed in a row."""
        return self._backoff.failures

    def next_at(self, *, pending: bool, new: bool) -> float:
        """When the next transaction is due. `pending`: the kernel has not learned of everything; `new`: nor has it
        been asked to."""
        due = [self._suspect_at, self._backoff.retry_at if self.failures else self._full_at + self.periods.sync_s]
        if new or ((pending or not self._certain) and not self.failures):
            due.append(self._ended_at + self.periods.min_sync_s)
        return min(due)

    def full_due(self, now: float) -> bool:
        """Whether a transaction that starts now has to look at what the kernel really has."""
        return not self._certain or now >= min(self._full_at + self.periods.sync_s, self._suspect_at)

    def doubt(self) -> None:
        """The kernel may have anything: a full sync is due, whatever failed before."""
        self._suspect_at = -math.inf

    def suspect(self, now: float) -> None:
        """Somebody else has changed something: a full sync is due, at once the first time, and a little later while
        they go on (up to LOOK_LIMIT_S), so that two who cannot agree do not keep a processor busy."""
        if self._suspect_at < math.inf:
            return
        if now >= self._looked_at + RETRY_LIMIT_S:
            self._look_delay_s = RETRY_FIRST_S
        self._suspect_at = max(now, self._looked_at + self._look_delay_s)

    def started(self, now: float, *, full: bool) -> None:
        """A transaction begins; should it be cancelled, nobody knows how it ended."""
        self._certain = False
        if full and now >= self._suspect_at:
            self._looked_at, self._suspect_at = now, math.inf
            self._look_delay_s = min(2 * self._look_delay_s, LOOK_LIMIT_S)

    def succeeded(self, now: float, *, full: bool) -> None:
        """The kernel is as it should be."""
        self._backoff.reset()
        self._certain = True
        self._ended_at = now
        if full:
            self._full_at = now

    def failed(self, now: float) -> None:
        """The kernel said no."""
        self._backoff.failed(now)
        self._ended_at = now
