"""The policies, one for each scheduler, and what a balancer asks of them.

A policy knows which endpoints there are and whose turn it is. It knows nothing of session affinity and ejection: the
balancer asks it for the next of those that are usable."""

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
"""Whether an endpoint may be picked now."""


class Policy(Protocol):
    """Spreads clients over the endpoints of one frontend."""

    def update(self, endpoints: Sequence[Target], balancing: Balancing) -> None:
        """Replace the endpoints, each of which is given once."""

    def pick(self, client: str, port: int, usable: Usable) -> Target | None:
        """Return the endpoint of a client's next connection, or None if none is usable."""

    def copy(self) -> Policy:
        """Return a policy whose picks are the next ones of this policy, and do not change it."""

    @property
    def endpoints(self) -> Sequence[Target]:
        """Return the endpoints. The order is that of their turns, if they have turns."""


def policy_for(balancing: Balancing, *, rng: random.Random, counts: OpenCounts) -> Policy:
    """Return a policy without endpoints; `counts`: what is open to them."""
    match balancing.scheduler:
        case Scheduler.ROUND_ROBIN:
            return RoundRobin(rng)
        case Scheduler.RANDOM:
            return AtRandom(rng)
        case Scheduler.LEAST_CONNECTIONS:
            return LeastConnections(rng, counts)
        case Scheduler.SOURCE_HASH | Scheduler.MAGLEV:
            return Hashing()
