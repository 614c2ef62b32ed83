"""How new connections are distributed over the endpoints of a Service."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import NamedTuple


class Scheduler(StrEnum):
    """The rule that gives a new connection its endpoint."""

    ROUND_ROBIN = "round-robin"
    """Each endpoint gets a connection in turn."""
    RANDOM = "random"
    """Each connection gets an endpoint drawn at random."""
    LEAST_CONNECTIONS = "least-connections"
    """The endpoint with the fewest open connections at this node gets the connection."""
    SOURCE_HASH = "source-hash"
    """The client's address decides, in the same way at every node."""
    MAGLEV = "maglev"
    """The client's address and port decide, in the same way at every node."""

    @property
    def hashes(self) -> bool:
        """Return whether the client alone decides, by a table that all nodes have in common."""
        return self in (Scheduler.SOURCE_HASH, Scheduler.MAGLEV)


MAX_WEIGHT = 100
"""The largest weight of an endpoint."""


class Balancing(NamedTuple):
    """The way in which new connections are spread. This value is passed unchanged from the frontend to the workers."""

    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    weights: tuple[int, ...] = ()
    """The weight of each endpoint, in the order of the endpoints. It is empty if all weights are the same."""
    seed: int = 0
    """The seed of the hash, for schedulers that use one."""

    def weight_of(self, number: int) -> int:
        """Return the weight of the endpoint at this position."""
        return self.weights[number] if self.weights else 1


ROUND_ROBIN = Balancing()
"""The default if nothing else is configured."""


def seed_of(namespace: str, name: str) -> int:
    """Return the seed of a Service's hash, which is the same at every node. With it a client gets different endpoints
    of different Services."""
    return zlib.crc32(f"{namespace}/{name}".encode()) or 1
