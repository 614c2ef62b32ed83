"""Ends half-closed connections that stay idle.

In such a connection one side has sent FIN, and the other side sends nothing and does not close. The other side is
alive, so keepalive never ends the connection. A sweep checks all connections now and then, so that neither a timer for
each connection nor a time for each byte is needed. It ends a half-closed connection if no byte has moved between two
checks that are a whole limit apart. If the endpoint has not sent any byte, a much shorter limit applies (minutes),
because the connection may be a loop, or the endpoint may be dead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection_sweep import sweep

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer
    from kubeproxy.dataplane.tcp.connection import Connection

LOOKS_PER_LIMIT = 4


class HalfClosedSweep:
    """Checks the connections of one reactor periodically."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None

    def restart(self) -> None:
        """Apply changed limits."""
        if self._timer is not None:
            self._timer.cancel()
        tune = self._context.tune
        every_s = min(tune.half_closed_idle_s, tune.unanswered_idle_s) / LOOKS_PER_LIMIT
        self._timer = self._context.reactor.after(every_s, self._look)

    def _look(self) -> None:
        sweep(self._context, self._end_if_idle, self.restart)

    def _end_if_idle(self, connection: Connection) -> None:
        if not connection.half_closed:
            return
        now, tune = self._context.reactor.now, self._context.tune
        limit_s = min(tune.half_closed_idle_s, tune.unanswered_idle_s if connection.unanswered else math.inf)
        if connection.quiet is None or connection.quiet[0] != connection.moved:
            connection.quiet = connection.moved, now
        elif now - connection.quiet[1] >= limit_s:
            connection.abort("idle")
