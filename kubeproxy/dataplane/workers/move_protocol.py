"""The protocol by which a worker hands its connections to a worker of another instance.

The sender is the worker that leaves. It sends a `Load` with the descriptors, and waits for the `Receipt` before it
sends the next one. So at most one load is on the way between two workers, and a connection is stopped for as long as
one load takes. The receipt decides which of the two continues. The receiver touches nothing before the receipt is sent,
and the sender closes nothing before the receipt has arrived. If it never arrives, the sender continues with all of the
load.

The channel is of the same kind as that between a worker and its control process (`channel`). Both sides must have the
same version of what a load holds, `takeover_messages.MOVES`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.udp.state import SessionState

LOAD_DESCRIPTORS: Final = 128
"""The largest number of descriptors in a load. The kernel passes no more than 253."""
LOAD_BYTES: Final = 256 << 10
"""The largest size of the backlogs in a load. One more connection may exceed it."""


class Load(Struct, frozen=True, tag=True, array_like=True):
    """Connections and UDP sessions to take over, each with its descriptors in the order of `ConnectionState`. A load
    without any asks for the room."""

    number: int
    connections: tuple[ConnectionState | SessionState, ...] = ()


class Receipt(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a load: all of its connections are taken over, except those at the places in `refused`. The first
    receipt has number 0, and answers no load."""

    number: int
    room: int
    """How many more descriptors the receiver takes."""
    refused: tuple[int, ...] = ()
