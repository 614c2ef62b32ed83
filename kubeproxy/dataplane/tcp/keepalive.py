"""Turns on TCP keepalive towards endpoints, which finds hosts that have vanished.

That takes three of the twenty system calls that a connection needs, and most connections do not live long enough to
need keepalive. So a sweep, once in each keepalive time, turns it on for the open connections. An endpoint is then
probed at most twice that time after its last packet. (Client sockets inherit keepalive from the listener.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.sweep import sweep

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer
    from kubeproxy.dataplane.tcp.connection import Connection


class KeepaliveSweep:
    """The periodic sweep over one reactor's connections."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None

    def restart(self) -> None:
        """Apply a changed keepalive time. Connections that have keepalive on keep the old time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.reactor.after(self._context.tune.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        sweep(self._context, self._keep_alive, self.restart)

    def _keep_alive(self, connection: Connection) -> None:
        if not connection.kept_alive:
            connection.keep_alive(self._context.tune.keepalive_s)
