"""The log of finished connections, which are kept until they are collected. It is filled only when an access log is
configured (`Tune.access_log`)."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct, field

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import FrontendName, Protocol, Target

ENTRIES_MAX = 4096
"""The largest number of entries that one process keeps, some 2 MiB."""


class Entry(Struct, array_like=True):
    """An open connection that will be logged at its end."""

    frontend: FrontendName
    client: Target
    began: Annotated[float, Meta(ge=0.0, le=1e11)] = field(default_factory=time.time)
    """The time of accept in Unix seconds. The entry has to be made at that moment."""
    endpoint: Target | None = None
    attempts: int = 0
    dial_s: float | None = None

    def ended(self, reason: str, *, duration_s: float, bytes_in: int = 0, bytes_out: int = 0) -> Ended:
        """Return the log record. The durations are in seconds from accept."""
        return Ended(
            frontend=self.frontend,
            protocol=Protocol.TCP,
            client=self.client,
            endpoint=self.endpoint,
            attempts=self.attempts,
            began=self.began,
            dial_s=self.dial_s,
            duration_s=duration_s,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            reason=reason,
        )


class ConnectionLog:
    """Finished connections, the oldest first."""

    def __init__(self) -> None:
        self.forgotten = 0
        """Records dropped because the log was full, since this process started."""
        self._ended: list[Ended] = []

    def add(self, ended: Ended) -> None:
        """Append a record, or count it as dropped when the log is full."""
        if len(self._ended) < ENTRIES_MAX:
            self._ended.append(ended)
        else:
            self.forgotten += 1

    def take(self) -> list[Ended]:
        """Remove and return the records collected so far."""
        taken, self._ended = self._ended, []
        return taken
