"""Counts durations by bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Durations in seconds, counted by upper bound."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper bounds in seconds, ascending. One more bucket takes longer durations."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of durations in each single bucket, not cumulative."""
        self.seconds = 0.0
        """The sum of all durations."""

    def add(self, seconds: float) -> None:
        """Count one duration. A duration equal to a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each includes all smaller ones, and the last bound is ``+Inf``."""
    buckets, total = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
