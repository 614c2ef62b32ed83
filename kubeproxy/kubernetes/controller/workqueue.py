"""A queue in which each key waits only once, and one worker at a time processes it.

It behaves as client-go's ``util/workqueue``. It is pure: every method takes `now` in seconds of any monotonic clock,
and nothing sleeps. `kubeproxy.kubernetes.controller.controller` adds the waiting.
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
"""The back-off of one key: 5 ms, doubled with every failure, at most 1000 s (client-go's
DefaultControllerRateLimiter)."""
QPS: Final = 10.0
BURST: Final = 100
"""The rate of all rate-limited additions together (client-go's DefaultControllerRateLimiter)."""
DURATION_BUCKETS_S: Final = tuple(10.0**power for power in range(-8, 2))
"""The upper bounds of client-go's workqueue histograms."""


class ItemBackoff:
    """Exponential back-off per key."""

    def __init__(self, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures: dict[str, int] = {}

    def next(self, key: str) -> float:
        """Count one more failure of `key`. Return the delay before its next try, in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if failures > 64:  # This is far beyond the cap, and 2**failures must stay a float.
            return self._cap_s
        return min(self._base_s * 2.0**failures, self._cap_s)

    def forget(self, key: str) -> None:
        """Drop the failures of `key`."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """Return the number of failures of `key` since it was forgotten."""
        return self._failures.get(key, 0)


def _durations() -> Histogram:
    return Histogram(DURATION_BUCKETS_S)


@dataclass(slots=True)
class QueueCounters:
    """What a queue did since it was made, for metrics."""

    adds: int = 0
    retries: int = 0
    waited: Histogram = field(default_factory=_durations)
    """The time from the addition of a key to the start of the work on it."""
    worked: Histogram = field(default_factory=_durations)
    """The time from the start of the work to its end."""


class WorkQueue:
    """Keys to be processed. `name` labels its metrics."""

    def __init__(self, name: str, *, backoff: ItemBackoff | None = None, bucket: TokenBucket | None = None) -> None:
        self.name = name
        self.counters = QueueCounters()
        self._backoff = backoff or ItemBackoff()
        self._bucket = bucket or TokenBucket(qps=QPS, burst=BURST)
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._dirty: dict[str, float] = {}
        """The keys with work to do, and since when."""
        self._processing: dict[str, float] = {}
        """The keys that a worker has, and since when."""
        self._due: dict[str, float] = {}
        """The keys that wait for their time."""
        self._heap: list[tuple[float, int, str]] = []
        """The keys of `_due` by time. An entry that differs from `_due` is stale."""
        self._order = count()
        self._shut_down = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def processing(self) -> int:
        """Return the keys that workers have now."""
        return len(self._processing)

    def add(self, key: str, now: float) -> None:
        """Request one run of `key`. A key that already waits is not added again. A key that is being processed runs
        once more."""
        if self._shut_down or key in self._dirty:
            return
        self.counters.adds += 1
        self._dirty[key] = now
        if key not in self._processing:
            self._queue[key] = None

    def add_after(self, key: str, delay_s: float, now: float) -> None:
        """Add `key` in `delay_s` seconds. If a key is given several times, the earliest counts."""
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
        """Add `key` after its back-off, which is at most `longest_s`, and the queue's bucket. Return the delay in
        seconds."""
        delay_s = max(min(self._backoff.next(key), longest_s), self._bucket.take(now))
        self.counters.retries += 1
        self.add_after(key, delay_s, now)
        return delay_s

    def forget(self, key: str) -> None:
        """Reset the back-off of `key`. It keeps its place in the queue."""
        self._backoff.forget(key)

    def requeues(self, key: str) -> int:
        """Return how often `key` was added with rate limiting since it was forgotten."""
        return self._backoff.failures(key)

    def take(self, now: float) -> str | None:
        """Return the next key, which from now on is being processed, or None if no key is ready."""
        self._promote(now)
        if not self._queue:
            return None
        key, _ = self._queue.popitem(last=False)
        self.counters.waited.add(max(0.0, now - self._dirty.pop(key)))
        self._processing[key] = now
        return key

    def done(self, key: str, now: float) -> None:
        """Note that the worker has finished `key`. If the key was added meanwhile, it waits again."""
        started = self._processing.pop(key)
        self.counters.worked.add(max(0.0, now - started))
        if key in self._dirty:
            self._queue[key] = None

    def next_due(self) -> float | None:
        """Return when the next delayed key becomes ready, or None if no key is delayed."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def unfinished_s(self, now: float) -> tuple[float, float]:
        """Return the seconds of work in progress: the sum over all keys, and the longest."""
        ages = [max(0.0, now - started) for started in self._processing.values()]
        return sum(ages), max(ages, default=0.0)

    def close(self) -> None:
        """Accept no further keys, and drop those that are delayed. Keys that already wait can still be taken."""
        self._shut_down = True
        self._due.clear()
        self._heap.clear()

    def _promote(self, now: float) -> None:
        """Move the keys that are due into the queue."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key, now)
