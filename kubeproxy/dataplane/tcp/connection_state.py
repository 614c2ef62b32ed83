"""What a process knows of a connection, apart from its sockets.

This state is sent to another process together with the descriptors. The rest stays in the kernel: the sockets with
their options, queues and errors, and a pipe with the bytes in it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.model import FrontendName, Target

BACKLOG_BYTES: Final = 128 << 10
"""The largest backlog: two reads."""

Count = Annotated[int, Meta(ge=0, le=1 << 60)]
"""A number of bytes. The sender may be controlled by an attacker, so numbers beyond these limits are refused."""
Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A number of seconds, with limits for the same reason."""


class FlowState(Struct, frozen=True, array_like=True):
    """One direction of a connection (see `flow.Flow`)."""

    count: Count = 0
    """The number of bytes read."""
    open: bool = True
    """Whether the source has not ended."""
    broken: bool = False
    """Whether the source is dead. After the bytes that are still in it a reset is passed on."""
    last: bool = False
    """Whether FIN follows the backlog."""
    backlog: Annotated[bytes, Meta(max_length=BACKLOG_BYTES)] = b""
    """Bytes that were read and not written."""
    piped: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    """The number of bytes in the pipe. An empty pipe does not move."""


class ConnectionState(Struct, frozen=True, tag=True, array_like=True):
    """Both directions, and what is counted. Times are spans, because another process may have another clock."""

    frontend: FrontendName | None
    target: Target
    age_s: Span
    """Seconds since accept."""
    adopted: bool
    """Whether the connection has moved before."""
    kept_alive: bool
    """Whether TCP keepalive is on towards the endpoint."""
    quiet_s: Span
    """For how long the connection has been half-closed without moving a byte."""
    entry: Entry | None
    """The entry for the access log."""
    up: FlowState
    down: FlowState

    @property
    def descriptors(self) -> int:
        """Return how many descriptors are sent along with this state: the client's, the endpoint's, and both ends of
        each pipe that holds bytes."""
        return 2 + 2 * bool(self.up.piped) + 2 * bool(self.down.piped)

    @property
    def size(self) -> int:
        """Return the number of bytes in the backlogs."""
        return len(self.up.backlog) + len(self.down.backlog)
