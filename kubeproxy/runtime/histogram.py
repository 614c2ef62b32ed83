"""Counts durations by bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """A histogram of durations in seconds."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds of the buckets in seconds, ascending. A further bucket counts longer
        durations."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of durations in each bucket. They are not cumulative."""
        self.seconds = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float) -> None:
        """Count a duration. A duration equal to an upper bound belongs to that bucket."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets in the form of Prometheus: each has its upper bound as text and a cumulative count, and the
    last bound is ``+Inf``."""
    buckets, total = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
