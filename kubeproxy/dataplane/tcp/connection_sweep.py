"""Calls a function for all open connections, a few in each turn, so that no client has to wait for the whole sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kubeproxy.dataplane.tcp.connection import Connection

if TYPE_CHECKING:
    from kubeproxy.dataplane.context import Context

AT_ONCE = 64
"""The number of connections in one turn. With a few system calls for each, they take some tenths of a millisecond."""


def sweep(context: Context, each: Callable[[Connection], None], then: Callable[[], None]) -> None:
    """Call `each` for every connection that is open now, unless the connection ends before its turn. Call `then` at the
    end.

    The first connections are processed before this function returns."""
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
