"""Limits the log lines that one tenant can cause, by object and by namespace.

Each change of an object may cause a line, and a tenant can change an object a hundred times a second. What the log
omits is still on the status page and in the metrics.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

FIELDS: Final = {
    "parts of object not served": "name",
    "service has a problem": "service",
    "service problem resolved": "service",
    "sync failed": "key",
}
"""The messages about objects of tenants. For each, the field whose value is NAMESPACE/NAME."""
INTERVAL_S: Final = 60.0
OF_OBJECT: Final = 5
OF_NAMESPACE: Final = 50
"""How many lines of one kind a namespace may have in `INTERVAL_S`."""
CAPACITY: Final = 4096
"""The number of objects and namespaces that are remembered. Beyond that number the oldest one is forgotten."""


class TenantLimit:
    """A structlog processor that drops lines beyond the limits. The next line that passes has the number of dropped
    lines as ``suppressed=N``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """For each message, and object or namespace: since when lines are counted, and how many there have been."""
        self._unsaid: dict[str, int] = {}
        """By message, how many lines were dropped since the last one that passed."""
        self.suppressed = 0
        """The total number of dropped lines."""

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event, or raise DropEvent if it exceeds a limit."""
        message = str(event.get("event", ""))
        field = FIELDS.get(message)
        if field is None:
            return event
        name = str(event.get(field, ""))
        namespace = f"{name.partition('/')[0]}/"
        if self._exceeds((message, name), OF_OBJECT) or self._exceeds((message, namespace), OF_NAMESPACE):
            self.suppressed += 1
            self._unsaid[message] = self._unsaid.get(message, 0) + 1
            raise structlog.DropEvent
        if unsaid := self._unsaid.pop(message, 0):
            event["suppressed"] = unsaid
        return event

    def _exceeds(self, key: tuple[str, str], most: int) -> bool:
        now = self._clock()
        since, lines = self._counts.get(key, (now, 0))
        if now - since >= INTERVAL_S:
            since, lines = now, 0
        self._counts[key] = since, lines + 1
        if lines == 0:
            self._counts.move_to_end(key)
        if len(self._counts) > CAPACITY:
            self._counts.popitem(last=False)
        return lines >= most


TENANTS: Final = TenantLimit()
"""The limit of this process."""
