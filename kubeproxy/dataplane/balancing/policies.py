"""The policies, one for each scheduler, and their interface to the balancer.

A policy knows only the endpoints and their turns. It does not know session affinity and ejections: the balancer asks it
for the next endpoint that is usable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from kubeproxy.dataplane.balancing.at_random import AtRandom
from kubeproxy.dataplane.balancing.hashing import Hashing
from kubeproxy.dataplane.balancing.least_connections import LeastConnections
from kubeproxy.dataplane.balancing.open_counts import OpenCounts
from kubeproxy.dataplane.balancing.round_robin import RoundRobin
from kubeproxy.model import Balancing, Scheduler, Target

Usable = Callable[[Target], bool]
"""A function that returns whether an endpoint may be picked now."""


class Policy(Protocol):
    """Distributes clients over the endpoints of one frontend."""

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """Replace the endpoints, which are all different."""

    def pick(self, client: str, port: int, usable: Usable) -> Target | None:
        """Return the endpoint for a client's next connection, or None if none is usable."""

    def copy(self) -> Policy:
        """Return a copy that will make the same picks as this policy. Picks of the copy do not change this policy."""

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints, in the order of their turns if they have turns."""


def policy_for(balancing: Balancing, *, rng: random.Random, counts: OpenCounts) -> Policy:
    """Return a policy without endpoints. `counts` has the numbers of open connections."""
    match balancing.scheduler:
        case Scheduler.ROUND_ROBIN:
            return RoundRobin(rng)
        case Scheduler.RANDOM:
            return AtRandom(rng)
        case Scheduler.LEAST_CONNECTIONS:
            return LeastConnections(rng, counts)
        case Scheduler.SOURCE_HASH | Scheduler.MAGLEV:
            return Hashing()
