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

from kubeproxy.dataplane.affinity import Affinity
from kubeproxy.dataplane.messages import Binding
from kubeproxy.model import Target

ASIDE_FIRST_S = 1.0
ASIDE_LIMIT_S = 30.0
"""How long an endpoint is put aside at its first failure, and at most."""
TRIAL_S = 5.0
"""How long the others wait for the outcome of a trial: a little longer than the ladder of dials lasts by default."""


class Aside:
    """Why an endpoint is passed over."""

    __slots__ = ("delay_s", "failures", "on_trial", "reason", "until")

    def __init__(self, until: float, delay_s: float, reason: str) -> None:
        self.until = until
        self.delay_s = delay_s
        self.reason = reason
        self.failures = 1
        self.on_trial = False

    def copy(self) -> Aside:
        """One of its own."""
        twin = Aside(self.until, self.delay_s, self.reason)
        twin.failures, twin.on_trial = self.failures, self.on_trial
        return twin


class Balancer:
    """The endpoints of one frontend, in turn."""

    __slots__ = ("_affinity", "_aside", "_members", "_rng", "_rotation", "_trials_beside")

    def __init__(self, *, rng: random.Random, trials_beside: bool = False) -> None:
        """With `trials_beside`, who asks for an endpoint also sees to it that those that are `due` are tried: then no
        client is sent to one that may still be dead while there is another."""
        self._rng = rng
        self._trials_beside = trials_beside
        self._rotation: deque[Target] = deque()
        self._members: frozenset[Target] = frozenset()
        self._aside: dict[Target, Aside] = {}
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
            self._aside = {target: aside for target, aside in self._aside.items() if target in members}
        self._affinity.set_timeout(affinity_timeout_s)

    def pick(self, client: str, now: float, avoid: Container[Target] = ()) -> Target | None:
        """The endpoint for a connection of this client (address text), other than those to avoid; None when there is
        no such endpoint. With affinity, the client is bound to what is picked."""
        affinity = self._affinity
        if affinity.timeout_s is None:
            return self._next(avoid, now)
        target = affinity.of(client, now)
        if target in self._members and target not in avoid:
            aside = self._aside.get(target)
            if aside is None or self._may_try(aside, now):
                self._try_again(target, now)
                affinity.bind(client, target, now)
                return target
        picked = self._next(avoid, now)
        if picked is not None:
            affinity.bind(client, picked, now)
        return picked

    def prospect(self, client: str, now: float, *, limit: int) -> tuple[Target | None, tuple[Target, ...]]:
        """The endpoint that a client is bound to (None: to none), and the order in which its next connection would try
        the endpoints, up to `limit` of them. Asked of a twin, so that asking changes nothing."""
        twin = Balancer(rng=self._rng, trials_beside=self._trials_beside)
        twin._rotation = self._rotation.copy()
        twin._members = self._members
        twin._aside = {target: aside.copy() for target, aside in self._aside.items()}
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

    def remember(self, bindings: Iterable[Binding], now: float) -> None:
        """What another process knew of clients, the longest unseen first. Those that are known here stay where they
        are, and an endpoint that is none of ours keeps nobody."""
        self._affinity.remember((each for each in bindings if each.target in self._members), now)

    def failed(self, target: Target, now: float, reason: str) -> None:
        """It did not answer, and how (see `Ill`). That many clients say so of the same silence counts once."""
        aside = self._aside.get(target)
        if aside is not None:
            if not aside.on_trial:
                return
            aside.on_trial = False
            aside.reason = reason
            aside.failures += 1
            aside.delay_s = min(2 * aside.delay_s, ASIDE_LIMIT_S)
            aside.until = now + aside.delay_s
        elif target in self._members:
            self._aside[target] = Aside(now + ASIDE_FIRST_S, ASIDE_FIRST_S, reason)

    def answered(self, target: Target) -> None:
        """It is as good as any."""
        if self._aside:
            self._aside.pop(target, None)

    def due(self, now: float) -> Target | None:
        """One whose time aside is over: to be tried now, by whoever asks. None: there is none."""
        for target, aside in self._aside.items():
            if aside.until <= now:
                self._try_again(target, now)
                return target
        return None

    def _next(self, avoid: Container[Target], now: float) -> Target | None:
        rotation, aside = self._rotation, self._aside
        for _ in range(len(rotation)):
            target = rotation[0]
            rotation.rotate(-1)
            if target in avoid:
                continue
            if aside and target in aside:
                if not self._may_try(aside[target], now):
                    continue
                self._try_again(target, now)
            return target
        if not aside:
            return None
        # All are aside: then that is no reason not to try, but rather one that has just stumbled than one long dead.
        likeliest = min((it for it in rotation if it not in avoid), key=lambda it: aside[it].failures, default=None)
        if likeliest is not None:
            rotation.remove(likeliest)
            rotation.append(likeliest)
        return likeliest

    def _may_try(self, aside: Aside, now: float) -> bool:
        return not self._trials_beside and aside.until <= now

    def _try_again(self, target: Target, now: float) -> None:
        """One tries it; the others wait for what comes of that."""
        aside = self._aside.get(target)
        if aside is not None:
            aside.on_trial = True
            aside.until = now + TRIAL_S

    @property
    def endpoints(self) -> Iterable[Target]:
        """The endpoints, the next one first."""
        return tuple(self._rotation)

    @property
    def aside(self) -> Mapping[Target, Aside]:
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
