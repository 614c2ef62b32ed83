"""The rate limit of a client's requests."""

from __future__ import annotations

from kubeproxy.kubernetes.client.token_bucket import TokenBucket


def test_the_bucket_admits_a_burst_and_then_a_rate() -> None:
    bucket = TokenBucket(qps=5, burst=10)
    assert [bucket.take(0.0) for _ in range(10)] == [0.0] * 10
    assert [round(bucket.take(0.0), 3) for _ in range(3)] == [0.2, 0.4, 0.6]
    assert bucket.take(100.0) == 0.0


def test_without_a_rate_there_is_no_limit() -> None:
    unlimited = TokenBucket(qps=0, burst=0)
    assert [unlimited.take(0.0) for _ in range(100)] == [0.0] * 100


def test_an_empty_bucket_refuses_without_debt() -> None:
    bucket = TokenBucket(qps=1, burst=2)
    assert [bucket.try_take(0.0) for _ in range(4)] == [True, True, False, False]
    assert bucket.try_take(1.0)
