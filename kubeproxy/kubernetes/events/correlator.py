"""A queue of Events to be sent. It counts equal Events, and limits their rate for each object. It is pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

from kubeproxy.kubernetes.client.token_bucket import TokenBucket

CAPACITY = 256
"""The largest number of different events in the queue. Further events are dropped."""
OBJECTS = 1024
"""The largest number of objects with a rate limit in memory."""
BURST = 25
REFILL_S = 300.0
"""The seconds in which an object may have one further event, after a burst of `BURST` (client-go, tools/record)."""


SIMILAR = 10
SIMILAR_S = 600.0
"""Similar events are combined once there are `SIMILAR` different messages, each within this many seconds of the last
one."""
COMBINED = "(combined from similar events): "

EventType = Literal["Normal", "Warning"]
"""The types of Events in the API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event of one object. Equal occurrences become one event with a count."""

    kind: str
    namespace: str
    """The object's namespace, or empty for cluster-scoped objects such as nodes."""
    name: str
    uid: str
    type: EventType
    reason: str
    message: str
    """The message. It is empty for combined events, whose newest message is in `CorrelatedEvent.message`."""
    api_version: str = "v1"
    """The API version of the object."""
    shared: bool = False
    """Whether other nodes may record the same event. The cluster then has only one Event of it."""


@dataclass(frozen=True, slots=True)
class CorrelatedEvent:
    """The count of an event, with its first and last time in Unix seconds."""

    first: float
    last: float
    count: int = 1
    message: str = ""
    """The newest message of combined events, or empty for other events."""

    def again(self, later: CorrelatedEvent) -> CorrelatedEvent:
        """Return this event with the count and the last time of a repetition added."""
        return CorrelatedEvent(self.first, later.last, self.count + later.count, later.message)


class SimilarEvents:
    """Events about one object with one reason that differ only in their messages. `now` is in Unix seconds."""

    def __init__(self) -> None:
        self._messages: OrderedDict[Occurrence, tuple[set[str], float]] = OrderedDict()

    def too_many(self, what: Occurrence, now: float) -> bool:
        """Return whether this event has to be combined with similar events.

        The first nine different messages are sent unchanged. Further messages are combined, until there was no similar
        event for ten minutes.
        """
        kind = replace(what, message="")
        messages, last = self._messages.get(kind, (set(), now))
        if now - last > SIMILAR_S:
            messages = set()
        messages.add(what.message)
        self._messages[kind] = messages, now
        self._messages.move_to_end(kind)
        if len(self._messages) > OBJECTS:
            self._messages.popitem(last=False)
        if len(messages) < SIMILAR:
            return False
        messages.discard(what.message)  # The set must not grow with each further message.
        return True


class EventCorrelator:
    """A bounded queue with one entry, and a count, for equal events. `now` is in Unix seconds."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._similar = SimilarEvents()
        self._waiting: OrderedDict[Occurrence, CorrelatedEvent] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()

    def put(self, what: Occurrence, now: float) -> bool:
        """Add an occurrence. Return False if it was dropped because of a limit."""
        if not self._bucket(what).try_take(now):
            return False
        message = ""
        if self._similar.too_many(what, now):
            message = f"{COMBINED}{what.message}"
            what = replace(what, message="")
        waiting = self._waiting.get(what)
        if waiting is not None:
            self._waiting[what] = replace(waiting, last=now, count=waiting.count + 1, message=message)
        elif len(self._waiting) < self._capacity:
            self._waiting[what] = CorrelatedEvent(now, now, message=message)
        else:
            return False
        return True

    def take(self) -> tuple[Occurrence, CorrelatedEvent] | None:
        """Remove and return the oldest event, or None if the queue is empty."""
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
