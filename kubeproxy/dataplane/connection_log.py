"""What became of connections: one entry for each that has ended, kept until somebody asks. Only where an access log is
wanted (`Tune.access_log`)."""

from __future__ import annotations

import time

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import FrontendName, Protocol, Target

ENTRIES_MAX = 4096
"""Kept at once, in each process; some 2 MiB."""


class Entry:
    """A connection that is to be told of when it has ended."""

    __slots__ = ("_began", "_client", "_frontend", "attempts", "dial_s", "endpoint")

    def __init__(self, frontend: FrontendName, client: Target) -> None:
        """It was accepted just now."""
        self._frontend = frontend
        self._client = client
        self._began = time.time()
        self.endpoint: Target | None = None
        self.attempts = 0
        self.dial_s: float | None = None

    def ended(self, reason: str, *, duration_s: float, bytes_in: int = 0, bytes_out: int = 0) -> Ended:
        """What there is to tell."""
        return Ended(
            frontend=self._frontend,
            protocol=Protocol.TCP,
            client=self._client,
            endpoint=self.endpoint,
            attempts=self.attempts,
            began=self._began,
            dial_s=self.dial_s,
            duration_s=duration_s,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            reason=reason,
        )


class ConnectionLog:
    """Those that have ended, the first first."""

    def __init__(self) -> None:
        self.forgotten = 0
        """How many found no place, since this process began."""
        self._ended: list[Ended] = []

    def add(self, ended: Ended) -> None:
        """One more."""
        if len(self._ended) < ENTRIES_MAX:
            self._ended.append(ended)
        else:
            self.forgotten += 1

    def take(self) -> list[Ended]:
        """Those that nobody has been told of."""
        taken, self._ended = self._ended, []
        return taken
