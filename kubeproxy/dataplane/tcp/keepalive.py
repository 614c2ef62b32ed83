"""Endpoints that have vanished without a word: TCP's keepalive finds them.

It takes three system calls to ask for it, of the twenty that a connection needs, and most connections do not live long
enough to need it. So it is asked for in a round over those that are there, one keepalive time after another: an
endpoint is then probed at most twice that time after it was last heard. (Clients have it from the listener.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection import Connection

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context
    from kubeproxy.dataplane.loop.reactor import Timer


class KeepaliveSweep:
    """Over all connections of one reactor."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None

    def restart(self) -> None:
        """The time has changed. Connections that are kept alive already keep theirs."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.reactor.after(self._context.tune.keepalive_s, self._go_round)

    def _go_round(self) -> None:
        seconds = self._context.tune.keepalive_s
        for live in self._context.live:
            if isinstance(live, Connection) and not live.kept_alive:
                live.keep_alive(seconds)
        self.restart()
