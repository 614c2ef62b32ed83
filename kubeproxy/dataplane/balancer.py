"""Which endpoint a client gets: exact round robin, and affinity by client address. Pure: no sockets, no clock.

The rotation is a queue: the front is next, and goes to the back when picked. When the set of endpoints changes, those
that stay keep their places and newcomers join at the back, so that the position is kept and nobody is visited twice in
a round. The first order is shuffled, or the proxies of a thousand nodes would all begin with the same endpoint.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence

from kubeproxy.model import Target

AFFINITY_ENTRIES = 65_536
"""Clients remembered for one frontend; beyond it the longest unseen is forgotten (about 10 MiB when full)."""


class Balancer:
    """The endpoints of one frontend, in turn."""

    __slots__ = ("_affinity", "_affinity_timeout_s", "_members", "_rng", "_rotation")

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._rotation: deque[Target] = deque()
        self._members: frozenset[Target] = frozenset()
        self._affinity: OrderedDict[str, tuple[Target, float]] = OrderedDict()
        self._affinity_timeout_s: float | None = None

    def update(self, endpoints: Sequence[Target], affinity_timeout_s: float | None) -> None:
        """The endpoints are these from now on; a client stays with its own for so many seconds after its last
        connection (None: no affinity)."""
        members = frozenset(endpoints)
        if members != self._members:
            newcomers = [target for target in endpoints if target not in self._members]
            self._rng.shuffle(newcomers)
            self._rotation = deque([target for target in self._rotation if target in members] + newcomers)
            self._members = members
        self._affinity_timeout_s = affinity_timeout_s
        if affinity_timeout_s is None:
            self._affinity.clear()

    def pick(self, client: str, now: float, avoid: Container[Target] = ()) -> Target | None:
        """The endpoint for a connection of this client (address text), other than those to avoid; None when there is
        no such endpoint. With affinity, the client is bound to what is picked."""
        if self._affinity_timeout_s is None:
            return self._next(avoid)
        bound = self._affinity.get(client)
        if bound is not None:
            target, last_used = bound
            if now - last_used < self._affinity_timeout_s and target in self._members and target not in avoid:
                self._bind(client, target, now)
                return target
        picked = self._next(avoid)
        if picked is not None:
            self._bind(client, picked, now)
        return picked

    def settle(self, client: str, target: Target, now: float) -> None:
        """A connection of this client was made to that endpoint, whichever was picked last."""
        if self._affinity_timeout_s is not None and target in self._members:
            self._bind(client, target, now)

    def _next(self, avoid: Container[Target]) -> Target | None:
        rotation = self._rotation
        for _ in range(len(rotation)):
            target = rotation[0]
            rotation.rotate(-1)
            if target not in avoid:
                return target
        return None

    def _bind(self, client: str, target: Target, now: float) -> None:
        affinity = self._affinity
        affinity[client] = (target, now)
        affinity.move_to_end(client)
        # Least recently used first, all with the same timeout: the expired are always at the front.
        timeout_s = self._affinity_timeout_s or 0.0
        while affinity and (len(affinity) > AFFINITY_ENTRIES or now - next(iter(affinity.values()))[1] >= timeout_s):
            affinity.popitem(last=False)

    @property
    def endpoints(self) -> Iterable[Target]:
        """The endpoints, the next one first."""
        return tuple(self._rotation)

    @property
    def affinity_entries(self) -> int:
        """How many clients are bound now, expired ones included until they are swept out."""
        return len(self._affinity)

    def __len__(self) -> int:
        return len(self._rotation)

    def __repr__(self) -> str:
        return f"<Balancer [{', '.join(map(str, self._rotation))}]>"
