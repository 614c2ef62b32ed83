"""What a process knows of a connection beside its sockets.

It is sent to another process together with the descriptors. What is in the kernel stays there: the sockets with their
options, queues and errors, and a pipe with the bytes in it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.model import FrontendName, Target

BACKLOG_BYTES: Final = 128 << 10
"""The most that waits for a sink: two reads."""

Count = Annotated[int, Meta(ge=0, le=1 << 60)]
"""Bytes. The process that sends it may be another's by now, and what is beyond these limits is no state."""
Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""Seconds; as above."""


class FlowState(Struct, frozen=True, array_like=True):
    """One direction (see `flow.Flow`)."""

    count: Count = 0
    """Bytes read."""
    open: bool = True
    """The source has not ended."""
    broken: bool = False
    """The source is dead: after the bytes still in it comes a reset."""
    last: bool = False
    """FIN follows the backlog."""
    backlog: Annotated[bytes, Meta(max_length=BACKLOG_BYTES)] = b""
    """Read, and not written."""
    piped: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    """Bytes in the pipe; without any the pipe stays behind."""


class ConnectionState(Struct, frozen=True, tag=True, array_like=True):
    """Both directions, and what is counted. Times are spans: another process may have another clock."""

    frontend: FrontendName | None
    target: Target
    age_s: Span
    """Since accept."""
    adopted: bool
    """It has moved already."""
    kept_alive: bool
    """TCP keepalive is on towards the endpoint."""
    quiet_s: Span
    """Half-closed, and no byte has moved for so long."""
    entry: Entry | None
    """Of the access log."""
    up: FlowState
    down: FlowState

    @property
    def descriptors(self) -> int:
        """How many come with it: client, endpoint, and both ends of each pipe that holds bytes."""
        return 2 + 2 * bool(self.up.piped) + 2 * bool(self.down.piped)

    @property
    def size(self) -> int:
        """Bytes of the backlogs."""
        return len(self.up.backlog) + len(self.down.backlog)
