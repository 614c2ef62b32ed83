"""Picks an endpoint for a client: exact round robin, session affinity, ejection. Pure: no sockets, no clock.

The rotation is a queue: the front is next, and goes to the back when picked. When the set of endpoints changes, those
that stay keep their places and new ones join at the back, so that the position is kept and no endpoint gets two turns
in a round. The first order is shuffled, or the proxies of a thousand nodes would all begin with the same endpoint.

An endpoint that did not answer is ejected, for a time that doubles with every failure: it is skipped, also for clients
with affinity to it, as long as there is another. When its time is over it is probed once, by a client's connection or
(with `probes_beside`) by one of the proxy's own, and skipped for all other clients until the probe has a result. If all
endpoints are ejected, all are tried, the one with the fewest failures first.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from kubeproxy.dataplane.balancing.affinity import Affinity
from kubeproxy.dataplane.messages import Binding
from kubeproxy.model import Target

EJECTION_FIRST_S = 1.0
EJECTION_LIMIT_S = 30.0
"""How long an ejection lasts at the first failure, and at most."""
PROBE_S = 5.0
"""How long a probe keeps the endpoint from other clients: a little longer than all dial timeouts by default."""


class Ejection:
    """Why, and until when, an endpoint is ejected."""

    __slots__ = ("delay_s", "failures", "probing", "reason", "since", "until")

    def __init__(self, since: float, delay_s: float, reason: str) -> None:
        self.since = since
        self.until = since + delay_s
        self.delay_s = delay_s
        self.reason = reason
        self.failures = 1
        self.probing = False

    def copy(self) -> Ejection:
        """Return an independent copy."""
        copy = Ejection(self.since, self.delay_s, self.reason)
        copy.until, copy.failures, copy.probing = self.until, self.failures, self.probing
        return copy


class Balancer:
    """The endpoints of one frontend and their order."""

    __slots__ = ("_affinity", "_ejected", "_members", "_probes_beside", "_rng", "_rotation")

    def __init__(self, *, rng: random.Random, probes_beside: bool = False) -> None:
        """With `probes_beside`, the caller probes the endpoints that are `due`.

        Then no client is sent to one that may still be dead while there is another."""
        self._rng = rng
        self._probes_beside = probes_beside
        self._rotation: deque[Target] = deque()
        self._members: frozenset[Target] = frozenset()
        self._ejected: dict[Target, Ejection] = {}
        self._affinity = Affinity()

    def update(self, endpoints: Sequence[Target], affinity_timeout_s: float | None) -> None:
        """Replace the endpoints and the affinity timeout (None: no affinity).

        A client stays with its endpoint for that time after its last connection."""
        members = frozenset(endpoints)
        if members != self._members:
            added = [target for target in endpoints if target not in self._members]
            self._rng.shuffle(added)
            self._rotation = deque([target for target in self._rotation if target in members] + added)
            self._members = members
            # An endpoint that left and comes back is a new one, without an ejection.
            self._ejected = {target: ejected for target, ejected in self._ejected.items() if target in members}
        self._affinity.set_timeout(affinity_timeout_s)

    def pick(self, client: str, now: float, avoid: Container[Target] = ()) -> Target | None:
        """Return the endpoint for a client's connection, none of those to avoid, or None if there is no other.

        `client` is the text of its address. With affinity, it is bound to the endpoint."""
        affinity = self._affinity
        if affinity.timeout_s is None:
            return self._next(avoid, now)
        target = affinity.of(client, now)
        if target in self._members and target not in avoid:
            ejected = self._ejected.get(target)
            if ejected is None or self._may_probe(ejected, now):
                self._mark_probing(target, now)
                affinity.bind(client, target, now)
                return target
        picked = self._next(avoid, now)
        if picked is not None:
            affinity.bind(client, picked, now)
        return picked

    def preview(self, client: str, now: float, *, limit: int) -> tuple[Target | None, tuple[Target, ...]]:
        """Return the endpoint that a client is bound to, and the order of its next connection's attempts.

        None: it is not bound. At most `limit` endpoints. Computed on a copy, so it changes nothing."""
        copy = Balancer(rng=self._rng, probes_beside=self._probes_beside)
        copy._rotation = self._rotation.copy()
        copy._members = self._members
        copy._ejected = {target: ejected.copy() for target, ejected in self._ejected.items()}
        copy._affinity.set_timeout(self._affinity.timeout_s)
        bound = self._affinity.of(client, now)
        if bound in self._members:
            copy._affinity.bind(client, bound, now)
        else:
            bound = None
        order: dict[Target, None] = {}
        while len(order) < limit and (target := copy.pick(client, now, order)) is not None:
            order[target] = None
        return bound, tuple(order)

    def settle(self, client: str, target: Target, now: float) -> None:
        """Bind a client to the endpoint of its connection, whichever was picked last."""
        if target in self._members:
            self._affinity.bind(client, target, now)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """Add another process's bindings, the least recently seen first. Clients bound here keep their endpoint, and
        bindings to other than this frontend's endpoints are dropped."""
        self._affinity.restore_bindings((each for each in bindings if each.target in self._members), now)

    def failed(self, target: Target, now: float, reason: str) -> None:
        """Eject an endpoint that did not answer; `reason` as in `EjectedEndpoint`.

        Failures of many connections during one ejection count once."""
        ejected = self._ejected.get(target)
        if ejected is not None:
            if not ejected.probing:
                return
            ejected.probing = False
            ejected.reason = reason
            ejected.failures += 1
            ejected.delay_s = min(2 * ejected.delay_s, EJECTION_LIMIT_S)
            ejected.until = now + ejected.delay_s
        elif target in self._members:
            self._ejected[target] = Ejection(now, EJECTION_FIRST_S, reason)

    def answered(self, target: Target) -> None:
        """End the ejection of an endpoint that answered."""
        if self._ejected:
            self._ejected.pop(target, None)

    def due(self, now: float) -> Target | None:
        """Return an endpoint that the caller has to probe now, as its ejection is over; or None."""
        for target, ejected in self._ejected.items():
            if ejected.until <= now:
                self._mark_probing(target, now)
                return target
        return None

    def _next(self, avoid: Container[Target], now: float) -> Target | None:
        rotation, ejected = self._rotation, self._ejected
        for _ in range(len(rotation)):
            target = rotation[0]
            rotation.rotate(-1)
            if target in avoid:
                continue
            if ejected and target in ejected:
                if not self._may_probe(ejected[target], now):
                    continue
                self._mark_probing(target, now)
            return target
        if not ejected:
            return None
        # All are ejected: try one all the same, and the one with the fewest failures is the likeliest to answer.
        likeliest = min((it for it in rotation if it not in avoid), key=lambda it: ejected[it].failures, default=None)
        if likeliest is not None:
            rotation.remove(likeliest)
            rotation.append(likeliest)
        return likeliest

    def _may_probe(self, ejected: Ejection, now: float) -> bool:
        return not self._probes_beside and ejected.until <= now

    def _mark_probing(self, target: Target, now: float) -> None:
        """Skip an ejected endpoint for all other clients while it is probed."""
        ejected = self._ejected.get(target)
        if ejected is not None:
            ejected.probing = True
            ejected.until = now + PROBE_S

    @property
    def endpoints(self) -> Iterable[Target]:
        """The endpoints in rotation order, the next one first."""
        return tuple(self._rotation)

    @property
    def ejected(self) -> Mapping[Target, Ejection]:
        """The ejected endpoints."""
        return self._ejected

    @property
    def affinity_entries(self) -> int:
        """Clients bound now; expired bindings count until they are removed."""
        return len(self._affinity)

    def bindings(self, now: float, *, since: float) -> Iterator[Binding]:
        """Yield the bindings made or used since `since`, the least recently seen first."""
        return self._affinity.bindings(now, since=since)

    def __len__(self) -> int:
        return len(self._rotation)

    def __repr__(self) -> str:
        return f"<Balancer [{', '.join(map(str, self._rotation))}]>"
