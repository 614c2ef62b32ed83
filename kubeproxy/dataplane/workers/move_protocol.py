"""The protocol by which a worker moves its connections to a worker of another instance.

The sender is the worker that leaves. It sends a `Load` with descriptors, and waits for its `Receipt` before it sends
the next one. So at most one load is in transit between two workers, and a connection is stopped only for the duration
of one load. The receipt decides which of the two workers continues the connections. The receiver does not use the
connections before it has sent the receipt, and the sender closes nothing before the receipt has arrived. If it never
arrives, the sender continues all connections of the load.

The channel is of the same kind as that between a worker and its control process (`channel`). Both sides must use the
same version of the load's content, `takeover_messages.MOVES`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.udp.state import SessionState

LOAD_DESCRIPTORS: Final = 128
"""The largest number of descriptors in a load. The kernel passes at most 253 at once."""
LOAD_BYTES: Final = 256 << 10
"""The largest total size of the backlogs in a load, in bytes. The last connection of a load may exceed it."""


class Load(Struct, frozen=True, tag=True, array_like=True):
    """Connections and UDP sessions to take over, with their descriptors in the order of `ConnectionState`. An empty
    load asks how much room the receiver has."""

    number: int
    connections: tuple[ConnectionState | SessionState, ...] = ()


class Receipt(Struct, frozen=True, tag=True, array_like=True):
    """The answer to a load: all its connections are taken over, except for those at the positions in `refused`. The
    first receipt has number 0, and answers no load."""

    number: int
    room: int
    """How many more descriptors the receiver can take."""
    refused: tuple[int, ...] = ()
