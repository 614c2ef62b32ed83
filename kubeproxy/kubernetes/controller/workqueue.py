"""A queue of keys, in which each key waits at most once and is processed by one worker at a time.

It behaves like client-go's ``util/workqueue``. It is pure: methods take `now` in seconds of any monotonic clock, and
none sleeps. `kubeproxy.kubernetes.controller.controller` waits for keys.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from kubeproxy.kubernetes.client.token_bucket import TokenBucket
from kubeproxy.runtime.histogram import Histogram

BASE_S: Final = 0.005
CAP_S: Final = 1000.0
"""The longest backoff of a key, in seconds. A key's backoff begins with BASE_S and doubles with every failure
(client-go's DefaultControllerRateLimiter)."""
QPS: Final = 10.0
BURST: Final = 100
"""The burst of rate-limited additions. QPS is their rate per second, for all keys together (client-go's
DefaultControllerRateLimiter)."""
DURATION_BUCKETS_S: Final = tuple(10.0**power for power in range(-8, 2))
"""The upper bounds of client-go's workqueue histograms."""


class ItemBackoff:
    """Exponential backoff of each key."""

    def __init__(self, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures: dict[str, int] = {}

    def next(self, key: str) -> float:
        """Count a failure of `key`, and return the delay before its next attempt, in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if failures > 64:  # The cap is reached long before, and a larger power would overflow a float.
            return self._cap_s
        return min(self._base_s * 2.0**failures, self._cap_s)

    def forget(self, key: str) -> None:
        """Reset the failures of `key`."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """Return the number of failures of `key` since they were reset."""
        return self._failures.get(key, 0)


def _durations() -> Histogram:
    return Histogram(DURATION_BUCKETS_S)


@dataclass(slots=True)
class QueueCounters:
    """The metrics of a queue since it was made."""

    adds: int = 0
    retries: int = 0
    waited: Histogram = field(default_factory=_durations)
    """The time from the addition of a key to the start of the work on it."""
    worked: Histogram = field(default_factory=_durations)
    """The time from the start of the work to its end."""


class WorkQueue:
    """A queue of keys to be processed. `name` is its label in metrics."""

    def __init__(self, name: str, *, bucket: TokenBucket | None = None) -> None:
        self.name = name
        self.counters = QueueCounters()
        self._backoff = ItemBackoff()
        self._bucket = bucket or TokenBucket(qps=QPS, burst=BURST)
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._dirty: dict[str, float] = {}
        """The keys that have to be processed, with the time of their addition."""
        self._processing: dict[str, float] = {}
        """The keys that workers are processing, with the time at which they began."""
        self._due: dict[str, float] = {}
        """The delayed keys, with the time at which they become ready."""
        self._heap: list[tuple[float, int, str]] = []
        """A heap of the delayed keys by time. An entry whose time differs from `_due` is stale."""
        self._order = count()
        self._shut_down = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def processing(self) -> int:
        """Return the number of keys that workers are processing."""
        return len(self._processing)

    def add(self, key: str, now: float) -> None:
        """Add `key`. A key that already waits is not added again. A key that is being processed is processed once more
        afterwards."""
        if self._shut_down or key in self._dirty:
            return
        self.counters.adds += 1
        self._dirty[key] = now
        if key not in self._processing:
            self._queue[key] = None

    def add_after(self, key: str, delay_s: float, now: float) -> None:
        """Add `key` in `delay_s` seconds. If it is already delayed, the earlier time counts."""
        if self._shut_down:
            return
        if delay_s <= 0:
            self.add(key, now)
            return
        due = now + delay_s
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))

    def add_rate_limited(self, key: str, now: float, *, longest_s: float = CAP_S) -> float:
        """Add `key` after its backoff, at most `longest_s` seconds, or later if the queue's rate limit demands it.
        Return the delay in seconds."""
        delay_s = max(min(self._backoff.next(key), longest_s), self._bucket.take(now))
        self.counters.retries += 1
        self.add_after(key, delay_s, now)
        return delay_s

    def forget(self, key: str) -> None:
        """Reset the backoff of `key`. Its place in the queue does not change."""
        self._backoff.forget(key)

    def requeues(self, key: str) -> int:
        """Return how often `key` was added with rate limiting since its backoff was reset."""
        return self._backoff.failures(key)

    def take(self, now: float) -> str | None:
        """Return the next key, and count it as being processed. Return None if no key is ready."""
        self._promote(now)
        if not self._queue:
            return None
        key, _ = self._queue.popitem(last=False)
        self.counters.waited.add(max(0.0, now - self._dirty.pop(key)))
        self._processing[key] = now
        return key

    def done(self, key: str, now: float) -> None:
        """Note that a worker has finished `key`. If the key was added meanwhile, it waits again."""
        started = self._processing.pop(key)
        self.counters.worked.add(max(0.0, now - started))
        if key in self._dirty:
            self._queue[key] = None

    def next_due(self) -> float | None:
        """Return the time at which the next delayed key becomes ready, or None if no key is delayed."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def unfinished_s(self, now: float) -> tuple[float, float]:
        """Return for how many seconds the keys in progress have been processed: the sum, and the maximum."""
        ages = [max(0.0, now - started) for started in self._processing.values()]
        return sum(ages), max(ages, default=0.0)

    def close(self) -> None:
        """Accept no further keys, and drop delayed keys. Keys that already wait can still be taken."""
        self._shut_down = True
        self._due.clear()
        self._heap.clear()

    def _promote(self, now: float) -> None:
        """Move the delayed keys that are ready into the queue."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key, now)
