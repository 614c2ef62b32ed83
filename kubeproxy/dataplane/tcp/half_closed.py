"""Half-closed connections that nobody ends.

One side has said all, the other says nothing and does not end: a peer that lives and has forgotten, which keepalive
never finds. Looked for rarely and all at once, so that a connection needs no timer, nor to remember when it was last
used: one that is half-closed and has moved no byte from one look to another, a whole limit later, is ended. One whose
endpoint has not sent a byte at all has a limit of minutes: nothing tells it from a loop, or from a dead endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection import Connection

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer

LOOKS_PER_LIMIT = 4


class HalfClosedSweep:
    """Of all connections of one reactor."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None
        self._quiet: dict[Connection, tuple[int, float]] = {}
        """The half-closed ones: how many bytes they had moved when they were first seen so, and when that was."""

    def restart(self) -> None:
        """The limit has changed."""
        if self._timer is not None:
            self._timer.cancel()
        tune = self._context.tune
        every_s = min(tune.half_closed_idle_s, tune.unanswered_idle_s) / LOOKS_PER_LIMIT
        self._timer = self._context.reactor.after(every_s, self._look)

    def _look(self) -> None:
        now, limit_s = self._context.reactor.now, self._context.tune.half_closed_idle_s
        unanswered_s = min(limit_s, self._context.tune.unanswered_idle_s)
        seen, self._quiet = self._quiet, {}
        for live in tuple(self._context.live):
            if not isinstance(live, Connection) or not live.half_closed:
                continue
            moved, since = seen.get(live, (-1, now))
            if moved != live.moved:
                since = now
            elif now - since >= (unanswered_s if live.unanswered else limit_s):
                live.abort("idle")
                continue
            self._quiet[live] = (live.moved, since)
        self.restart()
