"""Turns on TCP keepalive towards endpoints, which finds hosts that have vanished.

Turning keepalive on takes three system calls, and a whole connection needs only twenty. Most connections end before
keepalive would matter. So a sweep, once per keepalive time, turns it on for the connections that are open. An endpoint
is then probed at the latest after twice that time. (Client sockets inherit keepalive from the listener.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection_sweep import sweep

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer
    from kubeproxy.dataplane.tcp.connection import Connection


class KeepaliveSweep:
    """Sweeps over the connections of one reactor periodically."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None

    def restart(self) -> None:
        """Apply a changed keepalive time. Connections with keepalive already turned on keep the old time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.reactor.after(self._context.tune.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        sweep(self._context, self._keep_alive, self.restart)

    def _keep_alive(self, connection: Connection) -> None:
        if not connection.kept_alive:
            connection.keep_alive(self._context.tune.keepalive_s)
