"""Which client stays with which endpoint, and for how long; and how other processes learn of it. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from kubeproxy.dataplane.messages import Binding, Remember
from kubeproxy.model import FrontendName, Target

AFFINITY_ENTRIES = 65_536
"""Clients remembered for one frontend; beyond it the longest unseen is forgotten (about 10 MiB when full). And so many
of all frontends together are told to a successor."""
AT_ONCE = 32
"""Clients told of in one message: as many as fit into a line between processes (`succession.LINE_BYTES`), however long
their addresses are."""


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
        for client, target, age_s in bindings:
            if 0.0 <= age_s < timeout_s:
                latest = max(latest, now - age_s)
                self.bind(client, target, latest)

    def remember(self, bindings: Iterable[Binding], now: float) -> None:
        """The same of what another process has done before: who is known already stays where he is."""
        self.learn([binding for binding in bindings if binding.client not in self._bound], now)

    def bindings(self, now: float, *, since: float = -math.inf) -> list[Binding]:
        """The clients seen since then, the longest unseen first."""
        seen = takewhile(lambda item: item[1][1] >= since, reversed(self._bound.items()))
        found = [Binding(client, target, now - last_used) for client, (target, last_used) in seen]
        found.reverse()
        return found

    def __len__(self) -> int:
        return len(self._bound)


def pieces(frontend: FrontendName, bindings: Sequence[Binding]) -> Iterator[Remember]:
    """The same in messages of a size that suits everybody."""
    for at in range(0, len(bindings), AT_ONCE):
        yield Remember(frontend, tuple(bindings[at : at + AT_ONCE]))


def newest(remembered: Iterable[Remember], *, limit: int = AFFINITY_ENTRIES) -> list[Remember]:
    """What several processes remember, as one would: every client where it was seen last, of each frontend the longest
    unseen first, and of all together the `limit` that were seen last."""
    found = [(message.frontend, binding) for message in remembered for binding in message.bindings]
    found.sort(key=lambda each: each[1].age_s)
    last: dict[tuple[FrontendName, str], Binding] = {}
    for frontend, binding in found:
        if len(last) == limit:
            break
        last.setdefault((frontend, binding.client), binding)
    by_frontend: dict[FrontendName, list[Binding]] = {}
    for (frontend, _), binding in reversed(last.items()):
        by_frontend.setdefault(frontend, []).append(binding)
    return [piece for frontend, bindings in by_frontend.items() for piece in pieces(frontend, bindings)]
