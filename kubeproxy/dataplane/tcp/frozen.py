"""A connection at rest, between two processes that serve it one after the other.

The state is what a process knows of a connection beside its sockets: it is plain, and may be sent to another process,
together with the descriptors. What is in the kernel stays there: the sockets with their options, queues and errors, and
a pipe with the bytes in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from kubeproxy.dataplane.budgets.pipe_pool import Pipe
from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.dataplane.sockets.fd_calls import reset_on_close
from kubeproxy.model import FrontendName, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.context import Context, FrontendCounters


class FlowState(Struct, frozen=True, array_like=True):
    """One direction (see `flow.Flow`)."""

    count: int = 0
    """Bytes read."""
    open: bool = True
    """The source has not ended."""
    broken: bool = False
    """The source is dead: after the bytes still in it comes a reset."""
    last: bool = False
    """FIN follows the backlog."""
    backlog: bytes = b""
    """Read, and not written."""
    piped: int = 0
    """Bytes in the pipe; without any the pipe stays behind."""


class ConnectionState(Struct, frozen=True, tag=True, array_like=True):
    """Both directions, and what is counted. Times are spans: another process may have another clock."""

    frontend: FrontendName | None
    target: Target
    age_s: float
    """Since accept."""
    kept_alive: bool
    """TCP keepalive is on towards the endpoint."""
    quiet_s: float
    """Half-closed, and no byte has moved for so long."""
    entry: Entry | None
    """Of the access log."""
    up: FlowState
    down: FlowState

    @property
    def descriptors(self) -> int:
        """How many come with it: client, endpoint, and both ends of each pipe that holds bytes."""
        return 2 + 2 * bool(self.up.piped) + 2 * bool(self.down.piped)


class FrozenConnection:
    """A state with its descriptors, and the claims on them."""

    __slots__ = ("balancer", "context", "counters", "descriptors", "state")

    def __init__(
        self,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        state: ConnectionState,
        descriptors: Sequence[int],
    ) -> None:
        """The claims are made: see `claim`, where another process had made them."""
        self.context = context
        self.counters = counters
        self.balancer = balancer
        self.state = state
        self.descriptors = tuple(descriptors)

    @classmethod
    def claim(
        cls,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        state: ConnectionState,
        descriptors: Sequence[int],
    ) -> FrozenConnection | None:
        """Claim the descriptors of another process's connection; None if the budget has no room for them.

        A connection that exists is not measured by what is fair among new ones."""
        budget = context.budget
        if len(descriptors) != state.descriptors or budget.used + len(descriptors) > budget.limit:
            return None
        for _ in descriptors[2::2]:
            context.pipes.adopt()
        budget.take_back(2, counters.share)
        return cls(context, counters, balancer, state, descriptors)

    def close(self) -> None:
        """Close the descriptors and return the claims. The other process's connection does not notice."""
        for descriptor in self.descriptors[:2]:
            os.close(descriptor)
        pipes = self.descriptors[2:]
        for at in range(0, len(pipes), 2):
            self.context.pipes.give(Pipe(*pipes[at : at + 2]), empty=False)
        self.context.budget.give(2, self.counters.share)

    def abort(self) -> None:
        """End the connection: both sides get a reset."""
        for descriptor in self.descriptors[:2]:
            reset_on_close(descriptor)
        self.close()
