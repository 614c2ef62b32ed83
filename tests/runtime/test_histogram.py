"""Buckets of durations."""

from __future__ import annotations

from kubeproxy.runtime.histogram import Histogram, cumulative


def test_each_duration_counts_in_one_bucket() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 1, 1]
    assert histogram.seconds == 0.05 + 0.1 + 0.5 + 7.0


def test_cumulative_buckets_include_the_smaller_ones() -> None:
    assert cumulative((0.1, 1.0), [2, 1, 1]) == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
