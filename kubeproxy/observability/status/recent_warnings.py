"""Keeps the last warnings and errors of the log for the status."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kubeproxy.observability.status.document import RecentWarning

KEPT: Final = 50
"""The number of kept entries."""
_MAX_LENGTH: Final = 400
"""The largest length, in characters, of an entry's text and of its details."""
_NOT_DETAILS: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info", "_record"})


class RecentWarnings(logging.Handler):
    """Keeps the last `KEPT` warnings and errors, and counts repetitions. `attach` adds it to the root logger."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._kept: deque[RecentWarning] = deque(maxlen=KEPT)

    def attach(self) -> None:
        """Record everything that is logged from now on. This replaces the handler of an earlier call."""
        root = logging.getLogger()
        for old in [handler for handler in root.handlers if isinstance(handler, RecentWarnings)]:
            root.removeHandler(old)
        root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Record one log entry; `logging` calls this."""
        from kubeproxy.observability.status.document import (
            RecentWarning,  # Imported late, because a start without warnings does not need it.
        )

        text, details = _text_and_details(record)
        last = self._kept[-1] if self._kept else None
        times = 1
        if last is not None and (last.level, last.text, last.details) == (record.levelname.lower(), text, details):
            self._kept.pop()
            times += last.times
        self._kept.append(
            RecentWarning(at=record.created, level=record.levelname.lower(), text=text, details=details, times=times)
        )

    def newest_first(self) -> tuple[RecentWarning, ...]:
        """Return the recorded entries."""
        return tuple(reversed(self._kept))


def _text_and_details(record: logging.LogRecord) -> tuple[str, str]:
    """Return the event, and its fields as text. Of an exception only type and text are included, because the log has
    the traceback."""
    from kubeproxy.observability.redaction import redact

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
    return redact(text)[:_MAX_LENGTH], redact(details)[:_MAX_LENGTH]
