"""The last warnings and errors of the log, for those who look at the status and not at the log."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kubeproxy.observability.status.document import Incident

KEPT: Final = 50
_LONGEST: Final = 400
"""Characters of a text or its details."""
_NOT_DETAILS: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info", "_record"})


class RecentWarnings(logging.Handler):
    """Keeps the last `KEPT`; the same again, one after the other, is counted. Put it on the root logger by
    `listen`."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._kept: deque[Incident] = deque(maxlen=KEPT)

    def listen(self) -> None:
        """Hear everything that is logged from now on, once."""
        root = logging.getLogger()
        for old in [handler for handler in root.handlers if isinstance(handler, RecentWarnings)]:
            root.removeHandler(old)
        root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """As logging calls it."""
        from kubeproxy.observability.status.document import (
            Incident,  # here, because a start without warnings needs none of it
        )

        text, details = _words(record)
        last = self._kept[-1] if self._kept else None
        times = 1
        if last is not None and (last.level, last.text, last.details) == (record.levelname.lower(), text, details):
            self._kept.pop()
            times += last.times
        self._kept.append(
            Incident(at=record.created, level=record.levelname.lower(), text=text, details=details, times=times)
        )

    def newest_first(self) -> tuple[Incident, ...]:
        """What is kept."""
        return tuple(reversed(self._kept))


def _words(record: logging.LogRecord) -> tuple[str, str]:
    """The event and its fields; of an exception its type and text alone, the rest is in the log."""
    from kubeproxy.observability.status.wording import discreet

    if isinstance(record.msg, Mapping):
        fields = {key: value for key, value in record.msg.items() if key not in _NOT_DETAILS}
        text, error = str(record.msg.get("event", "")), record.msg.get("exc_info") or record.exc_info
    else:
        fields, text, error = {}, record.getMessage(), record.exc_info
    if error is True:
        error = sys.exc_info()
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        fields["error"] = f"{type(error).__name__}: {error}"
    details = " ".join(f"{key}={value}" for key, value in fields.items())
    return discreet(text)[:_LONGEST], discreet(details)[:_LONGEST]
