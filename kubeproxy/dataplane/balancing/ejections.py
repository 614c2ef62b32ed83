"""Ejection: endpoints that did not answer get no clients for a while. Pure: no sockets, no clock.

An endpoint that did not answer is ejected, for a time that doubles with every failure: it is skipped, also for clients
with affinity to it, as long as there is another. When its time is over it is probed once, by a client's connection or
(with `probes_beside`) by one of the proxy's own, and skipped for all other clients until the probe has a result. If all
endpoints are ejected, all are tried, the one with the fewest failures first.
"""

from __future__ import annotations

from collections.abc import Collection, Container

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


class Ejections:
    """The ejected endpoints of one frontend."""

    __slots__ = ("_probes_beside", "by_target")

    def __init__(self, *, probes_beside: bool) -> None:
        """With `probes_beside`, the caller probes the endpoints that are `due`.

        Then no client is sent to one that may still be dead while there is another."""
        self._probes_beside = probes_beside
        self.by_target: dict[Target, Ejection] = {}

    def copy(self) -> Ejections:
        """Return an independent copy."""
        copy = Ejections(probes_beside=self._probes_beside)
        copy.by_target = {target: ejected.copy() for target, ejected in self.by_target.items()}
        return copy

    def keep(self, members: Container[Target]) -> None:
        """Forget all other endpoints: one that leaves and comes back is a new one, without an ejection."""
        self.by_target = {target: ejected for target, ejected in self.by_target.items() if target in members}

    def eject(self, target: Target, now: float, reason: str) -> None:
        """Eject an endpoint; failures of many connections during one ejection count once."""
        ejected = self.by_target.get(target)
        if ejected is None:
            self.by_target[target] = Ejection(now, EJECTION_FIRST_S, reason)
        elif ejected.probing:
            ejected.probing = False
            ejected.reason = reason
            ejected.failures += 1
            ejected.delay_s = min(2 * ejected.delay_s, EJECTION_LIMIT_S)
            ejected.until = now + ejected.delay_s

    def end(self, target: Target) -> None:
        """End the ejection of an endpoint, if it is ejected."""
        if self.by_target:
            self.by_target.pop(target, None)

    def admits(self, target: Target, now: float) -> bool:
        """Return whether a client may have this endpoint while there are others: it is not ejected, or to be probed."""
        ejected = self.by_target.get(target)
        return ejected is None or (not self._probes_beside and ejected.until <= now)

    def mark_probing(self, target: Target, now: float) -> None:
        """Skip an ejected endpoint for all other clients while it is probed."""
        ejected = self.by_target.get(target)
        if ejected is not None:
            ejected.probing = True
            ejected.until = now + PROBE_S

    def due(self, now: float) -> Target | None:
        """Return an endpoint that the caller has to probe now, as its ejection is over; or None."""
        for target, ejected in self.by_target.items():
            if ejected.until <= now:
                self.mark_probing(target, now)
                return target
        return None

    def likeliest(self, among: Collection[Target]) -> set[Target]:
        """Return those of these ejected endpoints with the fewest failures, which are the likeliest to answer."""
        fewest = min((self.by_target[target].failures for target in among), default=0)
        return {target for target in among if self.by_target[target].failures == fewest}
