"""Keeps finished connections for the access log until they are collected. It is used only if an access log is
configured (`Tune.access_log`)."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct, field

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import FrontendName, Protocol, Target

ENTRIES_MAX = 4096
"""The largest number of entries that one process keeps. They take some 2 MiB."""


class Entry(Struct, array_like=True):
    """An open connection that will be logged when it ends."""

    frontend: FrontendName
    client: Target
    began: Annotated[float, Meta(ge=0.0, le=1e11)] = field(default_factory=time.time)
    """The Unix time at which the client was accepted. Create the entry at that moment."""
    endpoint: Target | None = None
    attempts: int = 0
    dial_s: float | None = None

    def ended(self, reason: str, *, duration_s: float, bytes_in: int = 0, bytes_out: int = 0) -> Ended:
        """Return the log record. Durations are in seconds since the client was accepted."""
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
    """The finished connections, the oldest first."""

    def __init__(self) -> None:
        self.forgotten = 0
        """How many records were dropped because the log was full, since this process started."""
        self._ended: list[Ended] = []

    def add(self, ended: Ended) -> None:
        """Append a record. If the log is full, drop and count it."""
        if len(self._ended) < ENTRIES_MAX:
            self._ended.append(ended)
        else:
            self.forgotten += 1

    def take(self) -> list[Ended]:
        """Remove and return the records collected so far."""
        taken, self._ended = self._ended, []
        return taken
