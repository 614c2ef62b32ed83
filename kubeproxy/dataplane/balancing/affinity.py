"""Which client stays with which endpoint, and for how long; and how other processes learn of it. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import FrontendName, Target

AFFINITY_ENTRIES = 65_536
"""Clients remembered for one frontend; beyond it the longest unseen is forgotten (about 14 MiB when full). And so many
of all frontends together are told to a successor."""
AT_ONCE = 32
"""Clients told of in one message: as many as fit into a line between processes (`succession.LINE_BYTES`), however long
their addresses are."""
_AGE = attrgetter("age_s")


class Affinity:
    """The clients of one frontend, the longest unseen first."""

    __slots__ = ("_bound", "timeout_s")

    def __init__(self) -> None:
        self._bound: OrderedDict[str, tuple[Target, float]] = OrderedDict()
        self.timeout_s: float | None = None
        """As set last."""

    def set_timeout(self, timeout_s: float | None) -> None:
        """How long a client stays after its last connection; None: there is no affinity, and nobody is remembered."""
        self.timeout_s = timeout_s
        if timeout_s is None:
            self._bound.clear()

    def of(self, client: str, now: float) -> Target | None:
        """The endpoint that a client (address text) stays with; None: with none, or not any more."""
        bound = self._bound.get(client)
        if bound is None or self.timeout_s is None or now - bound[1] >= self.timeout_s:
            return None
        return bound[0]

    def bind(self, client: str, target: Target, now: float) -> None:
        """It stays with this one from now on; `now` is never earlier than the last time."""
        bound, timeout_s = self._bound, self.timeout_s
        if timeout_s is None:
            return
        bound[client] = (target, now)
        bound.move_to_end(client)
        # Least recently used first, all with the same timeout: the expired are always at the front.
        while bound and (len(bound) > AFFINITY_ENTRIES or now - next(iter(bound.values()))[1] >= timeout_s):
            bound.popitem(last=False)

    def learn(self, bindings: Iterable[Binding], now: float) -> None:
        """Bind as another process has done meanwhile, the longest unseen first. One that was seen before somebody who
        is known already counts as seen with him: so the order stays."""
        bound, timeout_s = self._bound, self.timeout_s or 0.0
        latest = next(reversed(bound.values()))[1] if bound else -math.inf
        targets: dict[Target, Target] = {}  # what comes from elsewhere comes as many equal objects
        for client, target, age_s in bindings:
            if 0.0 <= age_s < timeout_s:
                latest = max(latest, now - age_s)
                self.bind(client, targets.setdefault(target, target), latest)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """The same of what another process has done before: who is known already stays where he is."""
        self.learn([binding for binding in bindings if binding.client not in self._bound], now)

    def bindings(self, now: float, *, since: float = -math.inf) -> Iterator[Binding]:
        """The clients seen since then, the longest unseen first. May be left off for a while."""
        seen = list(takewhile(lambda item: item[1][1] >= since, reversed(self._bound.items())))
        return (Binding(client, target, now - last_used) for client, (target, last_used) in reversed(seen))

    def __len__(self) -> int:
        return len(self._bound)


def pieces(frontend: FrontendName, bindings: Iterable[Binding]) -> Iterator[RestoreBindings]:
    """The same in messages of a size that suits everybody."""
    rest = iter(bindings)
    while piece := tuple(islice(rest, AT_ONCE)):
        yield RestoreBindings(frontend, piece)


def freshest(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """The pieces whose clients were seen last, up to so many clients. Quick, for it is done by one that serves."""
    found = sorted(remembered, key=lambda piece: piece.bindings[-1].age_s)
    counts = accumulate(len(piece.bindings) for piece in found)
    return [piece for piece, count in zip(found, counts, strict=True) if count <= limit]


def merged(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """What several processes remember, as one would: every client where it was seen last, of each frontend the longest
    unseen first, and of all together the `limit` that were seen last."""
    by_frontend: dict[FrontendName, list[Binding]] = {}
    for message in remembered:
        by_frontend.setdefault(message.frontend, []).extend(message.bindings)
    ages = sorted(binding.age_s for bindings in by_frontend.values() for binding in bindings)
    oldest_s = ages[limit - 1] if len(ages) > limit else math.inf
    found: list[RestoreBindings] = []
    for frontend, bindings in by_frontend.items():
        bindings.sort(key=_AGE, reverse=True)
        last = {binding.client: binding for binding in bindings if binding.age_s <= oldest_s}
        found += pieces(frontend, sorted(last.values(), key=_AGE, reverse=True))
    return found
