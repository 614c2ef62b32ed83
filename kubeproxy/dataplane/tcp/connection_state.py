"""The state of a connection, apart from its sockets.

The state is sent to another process together with the descriptors. Everything else is in the kernel: the sockets with
their options, queues and errors, and pipes with the bytes in them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.model import FrontendName, Target

BACKLOG_BYTES: Final = 128 << 10
"""The largest backlog in bytes: two reads."""

Count = Annotated[int, Meta(ge=0, le=1 << 60)]
"""A number of bytes. It is limited because an attacker may control the sending worker."""
Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A number of seconds, limited for the same reason."""


class FlowState(Struct, frozen=True, array_like=True):
    """The state of one direction of a connection (see `flow.Flow`)."""

    count: Count = 0
    """The number of bytes read."""
    open: bool = True
    """Whether the source may still send bytes."""
    broken: bool = False
    """Whether the source is dead. The reset is passed on after the bytes that are still to be read from it."""
    last: bool = False
    """Whether FIN has to follow the backlog."""
    backlog: Annotated[bytes, Meta(max_length=BACKLOG_BYTES)] = b""
    """The bytes that were read but not yet written."""
    piped: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    """The number of bytes in the pipe. An empty pipe is not sent."""


class ConnectionState(Struct, frozen=True, tag=True, array_like=True):
    """The state of a connection: both directions, and counters. It contains ages instead of times, because the other
    process may have another clock."""

    frontend: FrontendName | None
    target: Target
    age_s: Span
    """Seconds since the client was accepted."""
    adopted: bool
    """Whether the connection has moved between instances before."""
    kept_alive: bool
    """Whether TCP keepalive is on towards the endpoint."""
    quiet_s: Span
    """For how many seconds the connection has been half-closed without moving a byte."""
    entry: Entry | None
    """The entry for the access log, or None."""
    up: FlowState
    down: FlowState

    @property
    def descriptors(self) -> int:
        """Return how many descriptors belong to this state: the client's, the endpoint's, and both ends of each pipe
        that contains bytes."""
        return 2 + 2 * bool(self.up.piped) + 2 * bool(self.down.piped)

    @property
    def size(self) -> int:
        """Return the number of bytes in both backlogs."""
        return len(self.up.backlog) + len(self.down.backlog)
