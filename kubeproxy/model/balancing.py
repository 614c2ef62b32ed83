"""The settings that determine how new connections are spread over the endpoints of a Service."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import NamedTuple


class Scheduler(StrEnum):
    """The algorithm that chooses the endpoint of a new connection."""

    ROUND_ROBIN = "round-robin"
    """The endpoints get connections in turn."""
    RANDOM = "random"
    """Each connection gets a random endpoint."""
    LEAST_CONNECTIONS = "least-connections"
    """Each connection gets the endpoint with the fewest open connections from this node."""
    SOURCE_HASH = "source-hash"
    """A hash of the client's address chooses the endpoint, the same on every node."""
    MAGLEV = "maglev"
    """A hash of the client's address and port chooses the endpoint, the same on every node."""

    @property
    def hashes(self) -> bool:
        """Return whether a hash of the client chooses the endpoint, by a table that is the same on all nodes."""
        return self in (Scheduler.SOURCE_HASH, Scheduler.MAGLEV)


MAX_WEIGHT = 100
"""The largest weight of an endpoint."""


class Balancing(NamedTuple):
    """The settings for spreading new connections over endpoints. They are passed unchanged from the frontend to the
    workers."""

    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    weights: tuple[int, ...] = ()
    """The weight of each endpoint, in the order of the endpoints, or empty if all weights are equal."""
    seed: int = 0
    """The seed for schedulers that use a hash."""

    def weight_of(self, number: int) -> int:
        """Return the weight of the endpoint at this position."""
        return self.weights[number] if self.weights else 1


ROUND_ROBIN = Balancing()
"""The default settings."""


def seed_of(namespace: str, name: str) -> int:
    """Return the hash seed of a Service, which is the same on every node. It differs between Services, so that they do
    not all send a client to the same place in their tables."""
    return zlib.crc32(f"{namespace}/{name}".encode()) or 1
