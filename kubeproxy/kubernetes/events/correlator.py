"""Queue of events to send: counts equal ones, limits each object. No clock, no network."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

from kubeproxy.kubernetes.client.token_bucket import TokenBucket

CAPACITY = 256
"""The most different events that wait; further ones are dropped."""
OBJECTS = 1024
"""Objects with a rate limit in memory."""
BURST = 25
REFILL_S = 300.0
"""Per object 25 events at once, then one every five minutes (client-go, tools/record)."""


EventType = Literal["Normal", "Warning"]
"""The event types of the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event of one object. Equal occurrences are one event with a count."""

    kind: str
    namespace: str
    """Empty for cluster-scoped objects, such as nodes."""
    name: str
    uid: str
    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CorrelatedEvent:
    """Count of an event, with its first and last time (Unix seconds)."""

    first: float
    last: float
    count: int = 1

    def again(self, later: CorrelatedEvent) -> CorrelatedEvent:
        """The sum of both."""
        return CorrelatedEvent(self.first, later.last, self.count + later.count)


class EventCorrelator:
    """A bounded queue that holds each event once, with a count. `now` is in Unix seconds."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Occurrence, CorrelatedEvent] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()

    def put(self, what: Occurrence, now: float) -> bool:
        """Add an occurrence; False: it was dropped by a limit."""
        if not self._bucket(what).try_take(now):
            return False
        waiting = self._waiting.get(what)
        if waiting is not None:
            self._waiting[what] = replace(waiting, last=now, count=waiting.count + 1)
        elif len(self._waiting) < CAPACITY:
            self._waiting[what] = CorrelatedEvent(now, now)
        else:
            return False
        return True

    def take(self) -> tuple[Occurrence, CorrelatedEvent] | None:
        """Remove and return the oldest event; None: the queue is empty."""
        return self._waiting.popitem(last=False) if self._waiting else None

    def __len__(self) -> int:
        return len(self._waiting)

    def _bucket(self, what: Occurrence) -> TokenBucket:
        key = (what.kind, what.namespace, what.name)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(qps=1 / REFILL_S, burst=BURST)
        self._buckets.move_to_end(key)
        if len(self._buckets) > OBJECTS:
            self._buckets.popitem(last=False)
        return bucket
