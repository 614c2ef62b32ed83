"""Protocol by which a worker hands its connections to a worker of another instance.

The sender is the worker that leaves. It sends a `Load`, with the descriptors beside it, and waits for the `Receipt`
before it sends the next one. So at most one load is under way between two workers, and a connection is still for as
long as one load takes. The receipt decides: the receiver touches nothing before it is sent, and the sender closes
nothing before it has arrived. If it never arrives, the sender goes on with all of the load.

The channel is that between a worker and its control process (`channel`). What a load holds is of one version,
`takeover_messages.MOVES`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.udp.state import SessionState

LOAD_DESCRIPTORS: Final = 128
"""At most so many travel at once; the kernel passes no more than 253."""
LOAD_BYTES: Final = 256 << 10
"""Of backlogs; one more connection may exceed it."""


class Load(Struct, frozen=True, tag=True, array_like=True):
    """Connections and UDP sessions to take over, each with its descriptors in the order of `ConnectionState`. Without
    any it asks for the room."""

    number: int
    connections: tuple[ConnectionState | SessionState, ...] = ()


class Receipt(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a load: all of its connections are taken over except those at the places in `refused`. The first
    receipt has number 0, and answers no load."""

    number: int
    room: int
    """How many descriptors more the receiver takes."""
    refused: tuple[int, ...] = ()
