"""Keeps the endpoints that did not answer and get no clients for a while. This module has neither sockets nor a clock.

An endpoint that does not answer is ejected for a time that doubles with every failure, up to `EJECTION_LIMIT_S`. While
another endpoint is usable, no client is sent to an ejected one, even if session affinity binds the client to it. When
the time is over, the endpoint is probed once, by a client's connection or (with `probes_beside`) by a connection of the
proxy itself. Until the probe has a result, for at most `PROBE_S`, no other client is sent to the endpoint. If all
endpoints are ejected, all are tried, those with the fewest failures first.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from kubeproxy.model import Target

EJECTION_FIRST_S = 1.0
EJECTION_LIMIT_S = 30.0
"""The length of the first ejection, and the longest length, in seconds."""
PROBE_S = 5.0
"""For how many seconds a probe keeps other clients away from the endpoint. This is a little longer than the sum of the
default dial timeouts."""


class Ejection:
    """Why an endpoint is ejected, and until when."""

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
        """With `probes_beside`, the caller probes the endpoints returned by `due`. Then no client is used as a probe
        while another endpoint is usable."""
        self._probes_beside = probes_beside
        self.by_target: dict[Target, Ejection] = {}

    def copy(self) -> Ejections:
        """Return an independent copy."""
        copy = Ejections(probes_beside=self._probes_beside)
        copy.by_target = {target: ejected.copy() for target, ejected in self.by_target.items()}
        return copy

    def keep(self, members: Container[Target]) -> None:
        """Forget all endpoints except these. An endpoint that leaves and comes back is new, and not ejected."""
        self.by_target = {target: ejected for target, ejected in self.by_target.items() if target in members}

    def eject(self, target: Target, now: float, reason: str) -> None:
        """Eject an endpoint. Failures of several connections during one ejection count once."""
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
        """Return whether a client may be sent to this endpoint although there are others: the endpoint is not ejected,
        or its probe is due."""
        ejected = self.by_target.get(target)
        return ejected is None or (not self._probes_beside and ejected.until <= now)

    def mark_probing(self, target: Target, now: float) -> None:
        """Record that an ejected endpoint is being probed, so that no other client is sent to it."""
        ejected = self.by_target.get(target)
        if ejected is not None:
            ejected.probing = True
            ejected.until = now + PROBE_S

    def due(self, now: float) -> Target | None:
        """Return an endpoint whose ejection is over and which the caller has to probe now, or None if there is none."""
        for target, ejected in self.by_target.items():
            if ejected.until <= now:
                self.mark_probing(target, now)
                return target
        return None

    def likeliest(self, among: Collection[Target]) -> set[Target]:
        """Return the endpoints, among these ejected ones, with the fewest failures. They are the likeliest to
        answer."""
        fewest = min((self.by_target[target].failures for target in among), default=0)
        return {target for target in among if self.by_target[target].failures == fewest}
