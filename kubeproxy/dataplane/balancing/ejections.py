"""The endpoints that did not answer and get no clients for a while. There are no sockets and no clock in this module.

An endpoint that did not answer is ejected, for a time that doubles with every failure. As long as there is another
endpoint, clients are not sent to it, not even those with affinity to it. When its time is over the endpoint is probed
once, by a client's connection or (with `probes_beside`) by a connection of the proxy. Until the probe has a result no
other client is sent to it. If all endpoints are ejected, all are tried, those with the fewest failures first.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from kubeproxy.model import Target

EJECTION_FIRST_S = 1.0
EJECTION_LIMIT_S = 30.0
"""How long an ejection lasts at the first failure, and how long at most."""
PROBE_S = 5.0
"""For how long a probe keeps other clients from the endpoint. This is a little longer than all default dial timeouts
together."""


class Ejection:
    """The reason of an endpoint's ejection, and its end."""

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
        """With `probes_beside` the caller probes the endpoints that are `due`. Then no client is sent to an endpoint
        that may still be dead while there is another."""
        self._probes_beside = probes_beside
        self.by_target: dict[Target, Ejection] = {}

    def copy(self) -> Ejections:
        """Return an independent copy."""
        copy = Ejections(probes_beside=self._probes_beside)
        copy.by_target = {target: ejected.copy() for target, ejected in self.by_target.items()}
        return copy

    def keep(self, members: Container[Target]) -> None:
        """Forget all other endpoints. An endpoint that leaves and comes back counts as new, and is not ejected."""
        self.by_target = {target: ejected for target, ejected in self.by_target.items() if target in members}

    def eject(self, target: Target, now: float, reason: str) -> None:
        """Eject an endpoint. The failures of many connections during one ejection count once."""
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
        """Return whether a client may be sent to this endpoint while there are others: it is not ejected, or its probe
        is due."""
        ejected = self.by_target.get(target)
        return ejected is None or (not self._probes_beside and ejected.until <= now)

    def mark_probing(self, target: Target, now: float) -> None:
        """Skip an ejected endpoint for all other clients while it is probed."""
        ejected = self.by_target.get(target)
        if ejected is not None:
            ejected.probing = True
            ejected.until = now + PROBE_S

    def due(self, now: float) -> Target | None:
        """Return an endpoint whose ejection is over, and which the caller has to probe now. Return None if there is
        none."""
        for target, ejected in self.by_target.items():
            if ejected.until <= now:
                self.mark_probing(target, now)
                return target
        return None

    def likeliest(self, among: Collection[Target]) -> set[Target]:
        """Return those of these ejected endpoints that have the fewest failures, and so are the likeliest to answer."""
        fewest = min((self.by_target[target].failures for target in among), default=0)
        return {target for target in among if self.by_target[target].failures == fewest}
