"""Keeps the endpoints of the kernel path that are ejected: they get no new connections, because they have failed
clients.

An endpoint has one state, whichever process or client noticed its failure. A dial from this node ends the ejection, and
the time until the next dial doubles with each failed one. An endpoint that fails again soon after its return *flaps*:
it then stays ejected for twice as long as the last time, even if a dial would succeed. A UDP endpoint cannot be dialed,
so its ejection ends after a fixed time.

The last endpoint of a Service may be ejected, too; `data_path.Ejected` says where its clients go then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from kubeproxy.model import Protocol, Target
from kubeproxy.model.rescue import Ejection

FIRST_S: Final = 0.1
"""The seconds until the first dial."""
LIMIT_S: Final = 5.0
"""The longest time between two dials."""
UDP_FIRST_S: Final = 1.0
"""How long the first ejection of a UDP endpoint lasts."""
FLAP_S: Final = 10.0
"""An endpoint flaps if it fails within this time after its return, or within twice the length of its last ejection."""
FLAP_LIMIT_S: Final = 300.0
"""The longest ejection of an endpoint that flaps."""
PROBE_S: Final = 2.0
"""A dial without a result after this time is ignored, and the endpoint is due again."""


class Endpoint(NamedTuple):
    """The key of an ejection: protocol, address and port. It covers all Services that have this endpoint."""

    protocol: Protocol
    target: Target


class _Past(NamedTuple):
    """The last ejection of an endpoint that has returned."""

    ended_at: float
    delay_s: float


class KernelPathEjections:
    """Holds the present ejections, and recent ones to detect flapping."""

    def __init__(self) -> None:
        self._ejected: dict[Endpoint, Ejection] = {}
        self._past: dict[Endpoint, _Past] = {}

    @property
    def ejected(self) -> Mapping[Endpoint, Ejection]:
        """Return the ejected endpoints."""
        return self._ejected

    def failed(
        self, endpoint: Endpoint, now: float, *, reason: str, noticed_by: str, tenants: frozenset[str] = frozenset()
    ) -> bool:
        """Record that a client, or a dial, got no answer. Return True if that ejects the endpoint.

        During an ejection the failures of many clients count once, and only if they come after a dial.
        """
        ejection = self._ejected.get(endpoint)
        if ejection is not None:
            return False
        first_s = FIRST_S if endpoint.protocol is Protocol.TCP else UDP_FIRST_S
        past = self._past.pop(endpoint, None)
        if past is not None and now - past.ended_at <= max(FLAP_S, 2 * past.delay_s):
            first_s = min(max(first_s, 2 * past.delay_s), FLAP_LIMIT_S)
        self._ejected[endpoint] = Ejection(reason, noticed_by, now, now + first_s, first_s, tenants=tenants)
        return True

    def due(self, now: float) -> dict[Endpoint, frozenset[str]]:
        """Return the endpoints to dial now with their tenants, the longest due first. An endpoint stays due until it is
        dialed."""
        waiting = [endpoint for endpoint, ejection in self._ejected.items() if ejection.until <= now]
        waiting.sort(key=lambda endpoint: self._ejected[endpoint].until)
        return {endpoint: self._ejected[endpoint].tenants for endpoint in waiting}

    def dialed(self, endpoint: Endpoint, now: float) -> None:
        """Record that an endpoint is being dialed. A UDP endpoint is not dialed but returns: `answered` is called next
        if it has a route."""
        if (ejection := self._ejected.get(endpoint)) is not None:
            self._ejected[endpoint] = replace(ejection, until=now + PROBE_S)

    def unanswered(self, endpoint: Endpoint, now: float) -> None:
        """Record that a dial of an ejected endpoint has failed."""
        if (ejection := self._ejected.get(endpoint)) is not None:
            delay_s = max(min(2 * ejection.delay_s, LIMIT_S), FIRST_S)
            self._ejected[endpoint] = replace(
                ejection, failures=ejection.failures + 1, delay_s=delay_s, until=now + delay_s
            )

    def answered(self, endpoint: Endpoint, now: float) -> bool:
        """Record that a dial got an answer. Return True if that ends the ejection."""
        ejection = self._ejected.pop(endpoint, None)
        if ejection is None:
            return False
        self._past[endpoint] = _Past(now, ejection.delay_s)
        return True

    def keep(self, endpoints: Container[Endpoint], now: float) -> dict[Endpoint, Ejection]:
        """Forget endpoints that no Service has any more, and old ejections. Return the present ejections that were
        forgotten. If such an endpoint comes back, it is a new one."""
        gone = {endpoint: ejection for endpoint, ejection in self._ejected.items() if endpoint not in endpoints}
        for endpoint in gone:
            del self._ejected[endpoint]
        self._past = {
            endpoint: past
            for endpoint, past in self._past.items()
            if endpoint in endpoints and now - past.ended_at <= max(FLAP_S, 2 * past.delay_s)
        }
        return gone
