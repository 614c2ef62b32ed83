"""Session affinity: which client stays with which endpoint.

Bindings are exchanged with other processes as messages, with ages instead of times."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import FrontendName, Target

AFFINITY_ENTRIES = 65_536
"""The largest number of clients per frontend. Beyond it the client seen longest ago is removed. A full table takes
about 14 MiB. A takeover passes at most as many clients, of all frontends together, to the new instance."""
AT_ONCE = 32
"""The number of clients in one message. So many fit into a line of the takeover protocol (`daemon.takeover.protocol`),
however long their addresses are."""
_AGE = attrgetter("age_s")


class Affinity:
    """The bindings of one frontend's clients, the least recently seen first."""

    __slots__ = ("_bound", "timeout_s")

    def __init__(self) -> None:
        self._bound: OrderedDict[str, tuple[Target, float]] = OrderedDict()
        self.timeout_s: float | None = None
        """The timeout in effect, or None without affinity."""

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set how long a binding outlives its client's last connection. With None all bindings are removed."""
        self.timeout_s = timeout_s
        if timeout_s is None:
            self._bound.clear()

    def of(self, client: str, now: float) -> Target | None:
        """Return the endpoint that a client's address is bound to, or None without a valid binding."""
        bound = self._bound.get(client)
        if bound is None or self.timeout_s is None or now - bound[1] >= self.timeout_s:
            return None
        return bound[0]

    def bind(self, client: str, target: Target, now: float) -> None:
        """Bind a client to an endpoint. `now` never decreases from call to call."""
        bound, timeout_s = self._bound, self.timeout_s
        if timeout_s is None:
            return
        bound[client] = (target, now)
        bound.move_to_end(client)
        # The least recently used comes first, and all have the same timeout, so the expired ones are always at the
        # front.
        while bound and (len(bound) > AFFINITY_ENTRIES or now - next(iter(bound.values()))[1] >= timeout_s):
            bound.popitem(last=False)

    def learn(self, bindings: Iterable[Binding], now: float) -> None:
        """Add bindings of another process, the client seen longest ago first. If the order requires it, a client gets
        the time of the latest known client."""
        bound, timeout_s = self._bound, self.timeout_s or 0.0
        latest = next(reversed(bound.values()))[1] if bound else -math.inf
        targets: dict[Target, Target] = {}  # Decoded messages hold many equal objects; keep one of each.
        for client, target, age_s in bindings:
            if 0.0 <= age_s < timeout_s:
                latest = max(latest, now - age_s)
                self.bind(client, targets.setdefault(target, target), latest)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """Add bindings of an earlier process. Clients that are bound here already keep their endpoint."""
        self.learn([binding for binding in bindings if binding.client not in self._bound], now)

    def bindings(self, now: float, *, since: float = -math.inf) -> Iterator[Binding]:
        """Yield the bindings of clients seen since `since`, the client seen longest ago first. The caller may pause
        between steps."""
        seen = list(takewhile(lambda item: item[1][1] >= since, reversed(self._bound.items())))
        return (Binding(client, target, now - last_used) for client, (target, last_used) in reversed(seen))

    def __len__(self) -> int:
        return len(self._bound)


def pieces(frontend: FrontendName, bindings: Iterable[Binding]) -> Iterator[RestoreBindings]:
    """Return the bindings as messages of at most `AT_ONCE` clients."""
    rest = iter(bindings)
    while piece := tuple(islice(rest, AT_ONCE)):
        yield RestoreBindings(frontend, piece)


def freshest(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """Return the most recently seen pieces, up to `limit` clients. It takes whole pieces, and so is fast enough for a
    process that serves clients."""
    found = sorted(remembered, key=lambda piece: piece.bindings[-1].age_s)
    counts = accumulate(len(piece.bindings) for piece in found)
    return [piece for piece, count in zip(found, counts, strict=True) if count <= limit]


def merged(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """Return the bindings of several processes, merged. Each client keeps the binding that was used last. The bindings
    of a frontend are ordered, the client seen longest ago first. Over all frontends the `limit` most recently seen
    clients remain."""
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
