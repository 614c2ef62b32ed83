"""Finds the endpoints that have lost their route.

When a route is removed, the kernel's notification names its destination, and the endpoints at that destination have
lost their route. If notifications may have been missed, the route of every endpoint is looked up, `LOOKUPS` at a time.
All routes are also looked up regularly, because a new endpoint may have had no route from the beginning.
"""

from __future__ import annotations

from itertools import islice
from typing import Final
from typing import Protocol as Interface

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.netfilter.routing.lookup import has_route
from kubeproxy.netfilter.routing.route_watch import EVERYWHERE, Lost
from kubeproxy.rescue.ejector import Ejector

Endpoint = tuple[Protocol, Target]

LOOKUPS: Final = 300
"""How many routes are looked up at a time, which takes some 3 ms."""
SWEEP_S: Final = 10.0
"""How often all routes are looked up."""
SWEEP_EACH_S: Final = 0.001
"""The interval is longer by this much per endpoint, so that lookups for many endpoints take only a hundredth of the
time."""


class Watch(Interface):
    """Notices routes that are removed from the kernel."""

    def look(self) -> Lost:
        """Return the routes that were removed since the last call."""


class LostRoutes:
    """Finds the endpoints of one guardian that may have lost their route."""

    def __init__(self, ejector: Ejector, watch: Watch) -> None:
        self._ejector = ejector
        self._watch = watch
        self._lost: dict[Endpoint, None] = {}
        """The endpoints found but not yet returned by `next`, the oldest first."""
        self._unsure: dict[Endpoint, None] = {}
        """The endpoints whose route is to be looked up."""
        self._more = False
        self._sweep_at = float("-inf")

    def next(self, at_most: int, now: float) -> list[Endpoint]:
        """Return up to `at_most` endpoints that have no route, or whose former route was removed."""
        # The kernel announces a link before it removes the link's routes, so `more` is used one call later.
        more, (prefixes, self._more) = self._more, self._watch.look()
        if prefixes:
            self._lost.update(dict.fromkeys(self._ejector.endpoints_in(prefixes)))
        if more or now >= self._sweep_at:
            everywhere = self._ejector.endpoints_in(EVERYWHERE)
            self._unsure.update(dict.fromkeys(everywhere))
            self._sweep_at = now + max(SWEEP_S, SWEEP_EACH_S * len(everywhere))
        known: dict[Address, bool] = {}
        for endpoint in _taken(self._unsure, LOOKUPS):
            address = endpoint[1].address
            if address not in known:
                known[address] = has_route(address)
            if not known[address]:
                self._lost[endpoint] = None
        return _taken(self._lost, at_most)


def _taken(some: dict[Endpoint, None], at_most: int) -> list[Endpoint]:
    """Remove the first `at_most` endpoints from `some`, and return them."""
    found = list(islice(some, at_most))
    for endpoint in found:
        del some[endpoint]
    return found
