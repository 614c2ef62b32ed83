"""The endpoints of the kernel path that get no new connections, because they have failed clients.

An endpoint has one state, whichever process or client has noticed its failure. A dial from this node brings it back,
and the time until the next dial doubles with every failed one. An endpoint that fails soon after it came back *flaps*;
then it stays ejected for twice as long as the last time, whatever a dial would find. A UDP endpoint cannot be dialed.
It comes back when its time is over.

The last endpoint of a Service may be ejected, too; `data_path.Ejected` says where its clients go then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from kubeproxy.model import Protocol, Target
from kubeproxy.model.rescue import Ejection

FIRST_S: Final = 0.1
"""How long until the first dial."""
LIMIT_S: Final = 5.0
"""The longest time between dials."""
UDP_FIRST_S: Final = 1.0
"""How long a UDP endpoint is ejected at its first failure."""
FLAP_S: Final = 10.0
"""An endpoint flaps if it fails within this time after it came back, or within twice its last ejection."""
FLAP_LIMIT_S: Final = 300.0
"""The longest ejection of an endpoint that flaps."""
PROBE_S: Final = 2.0
"""A dial that has no result after this time counts as not made."""


class Endpoint(NamedTuple):
    """The endpoint that is ejected: an address and port of a protocol, for all Services that have the endpoint."""

    protocol: Protocol
    target: Target


class _Past(NamedTuple):
    """The last ejection of an endpoint that came back."""

    ended_at: float
    delay_s: float


class KernelPathEjections:
    """The endpoints that are ejected, and those that were."""

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
        """Note that a client, or a dial, has got no answer. Return True if that ejects the endpoint.

        Failures of many clients during one ejection count once, and only those after a dial.
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
        """Return the endpoints to dial now with their tenants, the longest due first. Each one stays due until it is
        dialed."""
        waiting = [endpoint for endpoint, ejection in self._ejected.items() if ejection.until <= now]
        waiting.sort(key=lambda endpoint: self._ejected[endpoint].until)
        return {endpoint: self._ejected[endpoint].tenants for endpoint in waiting}

    def dialed(self, endpoint: Endpoint, now: float) -> None:
        """Note that an endpoint is being dialed. A UDP endpoint is about to come back without a dial: `answered`
        follows if it has a route."""
        if (ejection := self._ejected.get(endpoint)) is not None:
            self._ejected[endpoint] = replace(ejection, until=now + PROBE_S)

    def unanswered(self, endpoint: Endpoint, now: float) -> None:
        """Note that a dial of an ejected endpoint has failed."""
        if (ejection := self._ejected.get(endpoint)) is not None:
            delay_s = max(min(2 * ejection.delay_s, LIMIT_S), FIRST_S)
            self._ejected[endpoint] = replace(
                ejection, failures=ejection.failures + 1, delay_s=delay_s, until=now + delay_s
            )

    def answered(self, endpoint: Endpoint, now: float) -> bool:
        """Note that a dial has got an answer. Return True if that brings the endpoint back."""
        ejection = self._ejected.pop(endpoint, None)
        if ejection is None:
            return False
        self._past[endpoint] = _Past(now, ejection.delay_s)
        return True

    def keep(self, endpoints: Container[Endpoint], now: float) -> dict[Endpoint, Ejection]:
        """Forget endpoints that no Service has any more, and old ejections. Return those that were ejected. An endpoint
        that leaves and comes back is a new one."""
        gone = {endpoint: ejection for endpoint, ejection in self._ejected.items() if endpoint not in endpoints}
        for endpoint in gone:
            del self._ejected[endpoint]
        self._past = {
            endpoint: past
            for endpoint, past in self._past.items()
            if endpoint in endpoints and now - past.ended_at <= max(FLAP_S, 2 * past.delay_s)
        }
        return gone
