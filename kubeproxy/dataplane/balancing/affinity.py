"""Session affinity: which client stays with which endpoint.

Bindings are exchanged with other processes as messages. They contain ages instead of times."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import FrontendName, Target

AFFINITY_ENTRIES = 65_536
"""The largest number of clients per frontend. Beyond that number the client seen longest ago is removed. A full
table takes about 14 MiB. In a takeover, at most this many clients of all frontends together are passed to the new
instance."""
AT_ONCE = 32
"""The number of clients in one message. With this number a message fits into a line of the takeover protocol
(`daemon.takeover.protocol`), even with the longest addresses."""
_AGE = attrgetter("age_s")


class Affinity:
    """The bindings of one frontend's clients, the client seen longest ago first."""

    __slots__ = ("_bound", "timeout_s")

    def __init__(self) -> None:
        self._bound: OrderedDict[str, tuple[Target, float]] = OrderedDict()
        self.timeout_s: float | None = None
        """The timeout in effect, or None without affinity."""

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set how many seconds a binding outlives its client's last connection. With None all bindings are removed."""
        self.timeout_s = timeout_s
        if timeout_s is None:
            self._bound.clear()

    def of(self, client: str, now: float) -> Target | None:
        """Return the endpoint to which a client's address is bound, or None without a valid binding."""
        bound = self._bound.get(client)
        if bound is None or self.timeout_s is None or now - bound[1] >= self.timeout_s:
            return None
        return bound[0]

    def bind(self, client: str, target: Target, now: float) -> None:
        """Bind a client to an endpoint. `now` must not decrease from call to call."""
        bound, timeout_s = self._bound, self.timeout_s
        if timeout_s is None:
            return
        bound[client] = (target, now)
        bound.move_to_end(client)
        # The bindings are ordered by last use and have the same timeout, so the expired ones are at the front.
        while bound and (len(bound) > AFFINITY_ENTRIES or now - next(iter(bound.values()))[1] >= timeout_s):
            bound.popitem(last=False)

    def learn(self, bindings: Iterable[Binding], now: float) -> None:
        """Add bindings that another process has reported, the client seen longest ago first. To keep the order, a
        client may get the time of the latest known client instead of its own."""
        bound, timeout_s = self._bound, self.timeout_s or 0.0
        latest = next(reversed(bound.values()))[1] if bound else -math.inf
        # Decoded messages contain many equal objects. Keep one of each to save memory.
        targets: dict[Target, Target] = {}
        for client, target, age_s in bindings:
            if 0.0 <= age_s < timeout_s:
                latest = max(latest, now - age_s)
                self.bind(client, targets.setdefault(target, target), latest)

    def restore_bindings(self, bindings: Iterable[Binding], now: float) -> None:
        """Add bindings of an earlier process. Clients that already have a binding here keep it."""
        self.learn([binding for binding in bindings if binding.client not in self._bound], now)

    def bindings(self, now: float, *, since: float = -math.inf) -> Iterator[Binding]:
        """Yield the bindings of clients seen since `since`, the client seen longest ago first. The caller may pause
        between two steps."""
        seen = list(takewhile(lambda item: item[1][1] >= since, reversed(self._bound.items())))
        return (Binding(client, target, now - last_used) for client, (target, last_used) in reversed(seen))

    def __len__(self) -> int:
        return len(self._bound)


def pieces(frontend: FrontendName, bindings: Iterable[Binding]) -> Iterator[RestoreBindings]:
    """Yield the bindings as messages of at most `AT_ONCE` clients."""
    rest = iter(bindings)
    while piece := tuple(islice(rest, AT_ONCE)):
        yield RestoreBindings(frontend, piece)


def freshest(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """Return the most recently used messages, up to `limit` clients. Messages are not split, so this is fast enough for
    a process that serves clients."""
    found = sorted(remembered, key=lambda piece: piece.bindings[-1].age_s)
    counts = accumulate(len(piece.bindings) for piece in found)
    return [piece for piece, count in zip(found, counts, strict=True) if count <= limit]


def merged(remembered: Iterable[RestoreBindings], *, limit: int = AFFINITY_ENTRIES) -> list[RestoreBindings]:
    """Return the merged bindings of several processes. Each client keeps the binding that was used last. Of all
    frontends together, only the `limit` most recently seen clients remain. The bindings of each frontend are ordered,
    the client seen longest ago first."""
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
