"""Which endpoint a client gets: exact round robin, and affinity by client address. Pure: no sockets, no clock.

The rotation is a queue: the front is next, and goes to the back when picked. When the set of endpoints changes, those
that stay keep their places and newcomers join at the back, so that the position is kept and nobody is visited twice in
a round. The first order is shuffled, or the proxies of a thousand nodes would all begin with the same endpoint.

An endpoint that did not answer is put aside, for a time that doubles with every failure: it is passed over, also by
clients with affinity to it, as long as there is another. When its time is over it is tried once, by a client or (with
`trials_beside`) beside the clients, and all others go on passing it over until that trial has an answer. If all are
aside, all are tried, those first that have failed least often.
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
"""How long an endpoint is put aside at its first failure, and at most."""
PROBE_S = 5.0
"""How long the others wait for the outcome of a trial: a little longer than the ladder of dials lasts by default."""


class Ejection:
    """Why an endpoint is passed over."""

    __slots__ = ("delay_s", "failures", "probing", "reason", "until")

    def __init__(self, until: float, delay_s: float, reason: str) -> None:
        self.until = until
        self.delay_s = delay_s
        self.reason = reason
        self.failures = 1
        self.probing = False

    def copy(self) -> Ejection:
        """One of its own."""
        twin = Ejection(self.until, self.delay_s, self.reason)
        twin.failures, twin.probing = self.failures, self.probing
        return twin


class Balancer:
    """The endpoints of one frontend, in turn."""

    __slots__ = ("_affinity", "_aside", "_members", "_rng", "_rotation", "_trials_beside")

    def __init__(self, *, rng: random.Random, probes_beside: bool = False) -> None:
        """With `trials_beside`, who asks for an endpoint also sees to it that those that are `due` are tried: then no
        client is sent to one that may still be dead while there is another."""
        self._rng = rng
        self._trials_beside = probes_beside
        self._rotation: deque[Target] = deque()
        self._members: frozenset[Target] = frozenset()
        self._aside: dict[Target, Ejection] = {}
        self._affinity = Affinity()

    def update(self, endpoints: Sequence[Target], affinity_timeout_s: float | None) -> None:
        """The endpoints are these from now on; a client stays with its own for so many seconds after its last
        connection (None: no affinity)."""
        members = frozenset(endpoints)
        if members != self._members:
            newcomers = [target for target in endpoints if target not in self._members]
            self._rng.shuffle(newcomers)
            self._rotation = deque([target for target in self._rotation if target in members] + newcomers)
            self._members = members
            # One that comes back is a new one, and gets its chance at once.
            self._aside = {target: ejected for target, ejected in self._aside.items() if target in members}
        self._affinity.set_timeout(affinity_timeout_s)

    def pick(self, client: str, now: float, avoid: Container[Target] = ()) -> Target | None:
        """The endpoint for a connection of this client (address text), other than those to avoid; None when there is
        no such endpoint. With affinity, the client is bound to what is picked."""
        affinity = self._affinity
        if affinity.timeout_s is None:
            return self._next(avoid, now)
        target = affinity.of(client, now)
        if target in self._members and target not in avoid:
            ejected = self._aside.get(target)
            if ejected is None or self._may_try(ejected, now):
                self._try_again(target, now)
                affinity.bind(client, target, now)
                return target
        picked = self._next(avoid, now)
        if picked is not None:
            affinity.bind(client, picked, now)
        return picked

    def preview(self, client: str, now: float, *, limit: int) -> tuple[Target | None, tuple[Target, ...]]:
        """The endpoint that a client is bound to (None: to none), and the order in which its next connection would try
        the endpoints, up to `limit` of them. Asked of a twin, so that asking changes nothing."""
        twin = Balancer(rng=self._rng, probes_beside=self._trials_beside)
        twin._rotation = self._rotation.copy()
        twin._members = self._members
        twin._aside = {target: ejected.copy() for target, ejected in self._aside.items()}
        twin._affinity.set_timeout(self._affinity.timeout_s)
        bound = self._affinity.of(client, now)
        if bound in self._members:
            twin._affinity.bind(client, bound, now)
        else:
            bound = None
        order: dict[Target, None] = {}
        while len(order) < limit and (target := twin.pick(client, now, order)) is not None:
            order[target] = None
        return bound, tuple(order)

    def settle(self, client: str, target: Target, now: float) -> None:
        """A connection of this client was made to that endpoint, whichever was picked last."""
        if target in self._members:
            self._affinity.bind(client, target, now)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """What another process knew of clients, the longest unseen first. Those that are known here stay where they
        are, and an endpoint that is none of ours keeps nobody."""
        self._affinity.restore_bindings((each for each in bindings if each.target in self._members), now)

    def failed(self, target: Target, now: float, reason: str) -> None:
        """It did not answer, and how (see `EjectedEndpoint`). That many clients say so of the same silence counts once."""
        ejected = self._aside.get(target)
        if ejected is not None:
            if not ejected.probing:
                return
            ejected.probing = False
            ejected.reason = reason
            ejected.failures += 1
            ejected.delay_s = min(2 * ejected.delay_s, EJECTION_LIMIT_S)
            ejected.until = now + ejected.delay_s
        elif target in self._members:
            self._aside[target] = Ejection(now + EJECTION_FIRST_S, EJECTION_FIRST_S, reason)

    def answered(self, target: Target) -> None:
        """It is as good as any."""
        if self._aside:
            self._aside.pop(target, None)

    def due(self, now: float) -> Target | None:
        """One whose time aside is over: to be tried now, by whoever asks. None: there is none."""
        for target, ejected in self._aside.items():
            if ejected.until <= now:
                self._try_again(target, now)
                return target
        return None

    def _next(self, avoid: Container[Target], now: float) -> Target | None:
        rotation, ejected = self._rotation, self._aside
        for _ in range(len(rotation)):
            target = rotation[0]
            rotation.rotate(-1)
            if target in avoid:
                continue
            if ejected and target in ejected:
                if not self._may_try(ejected[target], now):
                    continue
                self._try_again(target, now)
            return target
        if not ejected:
            return None
        # All are aside: then that is no reason not to try, but rather one that has just stumbled than one long dead.
        likeliest = min((it for it in rotation if it not in avoid), key=lambda it: ejected[it].failures, default=None)
        if likeliest is not None:
            rotation.remove(likeliest)
            rotation.append(likeliest)
        return likeliest

    def _may_try(self, ejected: Ejection, now: float) -> bool:
        return not self._trials_beside and ejected.until <= now

    def _try_again(self, target: Target, now: float) -> None:
        """One tries it; the others wait for what comes of that."""
        ejected = self._aside.get(target)
        if ejected is not None:
            ejected.probing = True
            ejected.until = now + PROBE_S

    @property
    def endpoints(self) -> Iterable[Target]:
        """The endpoints, the next one first."""
        return tuple(self._rotation)

    @property
    def ejected(self) -> Mapping[Target, Ejection]:
        """Those that are passed over, and until when."""
        return self._aside

    @property
    def affinity_entries(self) -> int:
        """How many clients are bound now, expired ones included until they are swept out."""
        return len(self._affinity)

    def bindings(self, now: float, *, since: float) -> Iterator[Binding]:
        """The clients bound, or seen again, since then, the longest unseen first."""
        return self._affinity.bindings(now, since=since)

    def __len__(self) -> int:
        return len(self._rotation)

    def __repr__(self) -> str:
        return f"<Balancer [{', '.join(map(str, self._rotation))}]>"
