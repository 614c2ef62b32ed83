"""How new connections are distributed over the endpoints of a Service."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import NamedTuple


class Scheduler(StrEnum):
    """The rule that gives a new connection its endpoint."""

    ROUND_ROBIN = "round-robin"
    """Each in turn."""
    RANDOM = "random"
    """A draw for each."""
    LEAST_CONNECTIONS = "least-connections"
    """The one with the fewest open connections at this node."""
    SOURCE_HASH = "source-hash"
    """By the client's address: the same at every node."""
    MAGLEV = "maglev"
    """By the client's address and port: the same at every node."""

    @property
    def hashes(self) -> bool:
        """Return whether the client alone decides, by a table that all nodes have in common."""
        return self in (Scheduler.SOURCE_HASH, Scheduler.MAGLEV)


MAX_WEIGHT = 100
"""The largest weight of an endpoint."""


class Balancing(NamedTuple):
    """How new connections are spread. Passes whole from the frontend to the workers."""

    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    weights: tuple[int, ...] = ()
    """The weight of each endpoint, in the order of the endpoints. Empty if all have the same."""
    seed: int = 0
    """Of the hash, for schedulers that have one."""

    def weight_of(self, number: int) -> int:
        """Return the weight of an endpoint by its place."""
        return self.weights[number] if self.weights else 1


ROUND_ROBIN = Balancing()
"""The default, if nothing else is asked for."""


def seed_of(namespace: str, name: str) -> int:
    """Return the seed of a Service's hash, the same at every node. Clients meet other endpoints of each Service."""
    return zlib.crc32(f"{namespace}/{name}".encode()) or 1
