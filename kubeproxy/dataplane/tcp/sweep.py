"""A sweep over the open connections, some of them in each turn, so that no client waits for the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection import Connection

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context

AT_ONCE = 64
"""Connections in a turn: some tenths of a millisecond, where each costs a few system calls."""


def sweep(context: Context, each: Callable[[Connection], None], then: Callable[[], None]) -> None:
    """Call `each` for every connection that is open now, unless it ends before its turn. Call `then` at the end.

    The first connections are handled before this returns."""
    left = list(context.live)

    def handle_some() -> None:
        for _ in range(min(AT_ONCE, len(left))):
            live = left.pop()
            if isinstance(live, Connection) and live in context.live:
                each(live)
        if left:
            context.reactor.again(handle_some)
        else:
            then()

    handle_some()
