"""Limits the rate of log messages. Repetitions are counted, and the next message that is logged includes their
number."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import structlog


class RateLimit:
    """Decides which repetitions of a message are logged (pure).

    A message of a key is allowed at most once in `interval_s` seconds. Memory is bounded: when there are more than
    `capacity` keys, the key that was allowed longest ago is dropped together with its count.
    """

    def __init__(self, *, interval_s: float, capacity: int = 1024) -> None:
        if interval_s <= 0 or capacity < 1:
            raise ValueError(f"a positive interval and capacity are needed, not {interval_s} and {capacity}")
        self.interval_s = interval_s
        self.capacity = capacity
        self._allowed: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """For each key, when a message was last allowed, and how many were suppressed since then. The key allowed
        longest ago comes first."""

    def allow(self, key: Hashable, now: float) -> int | None:
        """Return how many messages of the key were suppressed since one was last allowed, or None if this one is to be
        suppressed."""
        allowed_at, suppressed = self._allowed.get(key, (None, 0))
        if allowed_at is not None and now - allowed_at < self.interval_s:
            self._allowed[key] = (allowed_at, suppressed + 1)
            return None
        self._allowed[key] = (now, 0)
        self._allowed.move_to_end(key)
        if len(self._allowed) > self.capacity:
            self._allowed.popitem(last=False)
        return suppressed

    def reset(self, key: Hashable) -> None:
        """Allow the next message of the key at once."""
        self._allowed.pop(key, None)

    def __len__(self) -> int:
        return len(self._allowed)


class RateLimitedLog:
    """A logger that suppresses repetitions of a key for `interval_s` seconds.

    The next message of the key has the number of suppressed ones as ``suppressed=N``. By default the key is the
    message.
    """

    def __init__(
        self,
        log: structlog.typing.BindableLogger,
        *,
        interval_s: float = 60.0,
        capacity: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._rate_limit = RateLimit(interval_s=interval_s, capacity=capacity)
        self._clock = clock

    def info(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Log at level info unless it is a repetition."""
        self._write(logging.INFO, event, key, fields)

    def warning(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Log at level warning unless it is a repetition."""
        self._write(logging.WARNING, event, key, fields)

    def error(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Log at level error unless it is a repetition."""
        self._write(logging.ERROR, event, key, fields)

    def reset(self, key: Hashable) -> None:
        """Log the next message of the key at once, because the problem that it reports has ended."""
        self._rate_limit.reset(key)

    def _write(self, level: int, event: str, key: Hashable, fields: dict[str, Any]) -> None:
        suppressed = self._rate_limit.allow(event if key is None else key, self._clock())
        if suppressed is None:
            return
        if suppressed:
            fields["suppressed"] = suppressed
        self._log.log(level, event, **fields)  # type: ignore[attr-defined]
