"""How long to wait before the next try, and how often a client may ask at all. No clock, no sleep."""

from __future__ import annotations

from random import Random


class Backoff:
    """Decorrelated jitter: each delay is drawn between `base_s` and three times the one before, or `cap_s`.

    A thousand nodes that lost the same server at the same instant so drift apart from the first delay on. The draw is
    what is bounded, not its result: most results would be the cap itself, and the nodes would meet again there. The
    cap is low because what it bounds is how long a node stays behind after the server is back.
    """

    def __init__(self, *, base_s: float, cap_s: float, random: Random) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._random = random
        self._last_s = base_s

    def next(self) -> float:
        """The delay before the next try, in seconds."""
        self._last_s = self._random.uniform(self._base_s, min(self._cap_s, 3 * self._last_s))
        return self._last_s

    def reset(self) -> None:
        """It worked: the next failure starts from the base again."""
        self._last_s = self._base_s


class TokenBucket:
    """`qps` requests a second on average, `burst` at once; ``qps <= 0``: no limit."""

    def __init__(self, *, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._tokens = float(self._burst)
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take a token; the seconds to wait until it is there. Waiters are served in the order in which they asked."""
        if self._qps <= 0:
            return 0.0
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def try_take(self, now: float) -> bool:
        """Take a token if there is one, and do without otherwise."""
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
