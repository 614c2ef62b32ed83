"""Repeats in the log: said once, then counted, then told with the next one."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import structlog


class Repeats:
    """Decides which repeats of a message are said (pure).

    A key is admitted at most once in `interval_s` seconds. Memory is bounded: beyond `capacity` keys the one said
    longest ago is forgotten, together with its count.
    """

    def __init__(self, *, interval_s: float, capacity: int = 1024) -> None:
        if interval_s <= 0 or capacity < 1:
            raise ValueError(f"a positive interval and capacity are needed, not {interval_s} and {capacity}")
        self.interval_s = interval_s
        self.capacity = capacity
        self._said: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """When a key was last said, and how often it was swallowed since; the longest ago first."""

    def admit(self, key: Hashable, now: float) -> int | None:
        """None: keep silent. Otherwise say it; the number tells how often it was swallowed since it was last said."""
        said_at, suppressed = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < self.interval_s:
            self._said[key] = (said_at, suppressed + 1)
            return None
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > self.capacity:
            self._said.popitem(last=False)
        return suppressed

    def forget(self, key: Hashable) -> None:
        """Say the next one at once: what the key stands for is over."""
        self._said.pop(key, None)

    def __len__(self) -> int:
        return len(self._said)


class RateLimitedLog:
    """A logger whose repeats of one key are swallowed for `interval_s` seconds; the next one that is said carries
    their number as ``suppressed=N``. `key` tells repeats apart; by default it is the message itself."""

    def __init__(
        self,
        log: structlog.typing.BindableLogger,
        *,
        interval_s: float = 60.0,
        capacity: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._repeats = Repeats(interval_s=interval_s, capacity=capacity)
        self._clock = clock

    def info(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Something noteworthy, maybe again."""
        self._say(logging.INFO, event, key, fields)

    def warning(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Something that an operator may have to look at, maybe again."""
        self._say(logging.WARNING, event, key, fields)

    def error(self, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Something that failed, maybe again."""
        self._say(logging.ERROR, event, key, fields)

    def over(self, key: Hashable) -> None:
        """What the key stands for is over: the next one is news again."""
        self._repeats.forget(key)

    def _say(self, level: int, event: str, key: Hashable, fields: dict[str, Any]) -> None:
        suppressed = self._repeats.admit(event if key is None else key, self._clock())
        if suppressed is None:
            return
        if suppressed:
            fields["suppressed"] = suppressed
        self._log.log(level, event, **fields)  # type: ignore[attr-defined]
