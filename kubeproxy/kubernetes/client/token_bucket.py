"""A token bucket that limits a rate. It is pure: callers pass the time, and it does not sleep."""

from __future__ import annotations


class TokenBucket:
    """Admits `qps` events a second on average, and `burst` at once. There is no limit if ``qps <= 0``."""

    def __init__(self, *, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._tokens = float(self._burst)
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take a token, and return the seconds until it may be used. Tokens become available in the order of the
        calls."""
        if self._qps <= 0:
            return 0.0
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def try_take(self, now: float) -> bool:
        """Take a token if one is available now. Return whether it was taken."""
        if self._qps <= 0:
            return True
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._qps)
        self._at = now
