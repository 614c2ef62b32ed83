"""Ends half-closed connections that stay idle.

In such a connection one side has sent FIN, and the other side sends nothing and does not close. The other side is alive
and idle, so keepalive never ends it. A rare sweep checks all connections at once. So no connection needs a timer, and
no byte needs a time. The sweep ends a half-closed connection that has moved no byte between two checks a whole limit
apart. While the endpoint has not sent a byte at all, the limit is minutes, because the connection may be a loop, or the
endpoint may be dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection import Connection

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer

LOOKS_PER_LIMIT = 4


class HalfClosedSweep:
    """The periodic check of one reactor's connections."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None

    def restart(self) -> None:
        """Apply a changed limit."""
        if self._timer is not None:
            self._timer.cancel()
        tune = self._context.tune
        every_s = min(tune.half_closed_idle_s, tune.unanswered_idle_s) / LOOKS_PER_LIMIT
        self._timer = self._context.reactor.after(every_s, self._look)

    def _look(self) -> None:
        now, limit_s = self._context.reactor.now, self._context.tune.half_closed_idle_s
        unanswered_s = min(limit_s, self._context.tune.unanswered_idle_s)
        for live in tuple(self._context.live):
            if not isinstance(live, Connection) or not live.half_closed:
                continue
            if live.quiet is None or live.quiet[0] != live.moved:
                live.quiet = live.moved, now
            elif now - live.quiet[1] >= (unanswered_s if live.unanswered else limit_s):
                live.abort("idle")
        self.restart()
