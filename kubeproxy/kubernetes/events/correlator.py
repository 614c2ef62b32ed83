"""Events that wait to be sent: the same ones counted together, chatty objects cut short. No clock, no network."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

from kubeproxy.kubernetes.client.backoff import TokenBucket

CAPACITY = 256
"""Different events that wait at once; beyond it new ones are dropped."""
OBJECTS = 1024
"""Objects whose chattiness is remembered."""
BURST = 25
REFILL_S = 300.0
"""For each object so many events at once, and one more every five minutes (client-go, tools/record)."""


EventType = Literal["Normal", "Warning"]
"""What the API knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """What happened to which object. Equal ones are one event, counted."""

    kind: str
    namespace: str
    """Empty for objects of the cluster's own, such as nodes."""
    name: str
    uid: str
    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CorrelatedEvent:
    """How often something happened, first and last (Unix seconds)."""

    first: float
    last: float
    count: int = 1

    def again(self, later: CorrelatedEvent) -> CorrelatedEvent:
        """Both together."""
        return CorrelatedEvent(self.first, later.last, self.count + later.count)


class EventCorrelator:
    """A bounded queue in which an event stands once, however often it happens. `now` is in Unix seconds."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Occurrence, CorrelatedEvent] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()

    def put(self, what: Occurrence, now: float) -> bool:
        """Something happened; False: it is dropped, for there is too much of it."""
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
        """The one that waits longest, which is then no longer here; None: nothing waits."""
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
