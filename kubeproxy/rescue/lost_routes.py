"""Finds the endpoints that have lost their route.

When a route is removed, the kernel's notification names its destination, and the endpoints at that destination have
lost their route. If notifications may have been missed, the route of every endpoint is looked up, `LOOKUPS` at a time.
All routes are also looked up regularly, because a new endpoint may have had no route from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final
from typing import Protocol as Interface

from kubeproxy.model import Protocol, Target
from kubeproxy.netfilter.routing.lookup import without_route
from kubeproxy.netfilter.routing.route_watch import Lost
from kubeproxy.rescue.ejector import Ejector

Endpoint = tuple[Protocol, Target]

LOOKUPS: Final = 300
"""How many routes are looked up at a time, which takes some 1 ms."""
SWEEP_S: Final = 10.0
"""How often all routes are looked up."""
SWEEP_EACH_S: Final = 0.001
"""By how many seconds the interval between two sweeps grows for each endpoint, so that sweeps over many endpoints take
only a hundredth of the time."""


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
        self._sweep: Iterator[Endpoint] = iter(())
        """The endpoints whose route this sweep has not looked up yet."""
        self._swept = 0
        """How many endpoints this sweep has looked up."""
        self._began = float("-inf")
        """When this sweep began."""
        self._more = self._again = False

    def next(self, at_most: int, now: float) -> list[Endpoint]:
        """Return up to `at_most` endpoints that have no route, or whose former route was removed."""
        # The kernel announces a link before it removes the link's routes, so `more` is used one call later.
        more, (prefixes, self._more) = self._more, self._watch.look()
        # A sweep is never restarted, so that every endpoint gets its turn even if links are removed all the time.
        self._again = self._again or more
        if prefixes:
            self._lost.update(dict.fromkeys(self._ejector.endpoints_in(prefixes)))
        some = list(islice(self._sweep, LOOKUPS))
        if not some and (self._again or now >= self._began + max(SWEEP_S, SWEEP_EACH_S * self._swept)):
            self._sweep, self._swept, self._began, self._again = self._ejector.endpoints(), 0, now, False
            some = list(islice(self._sweep, LOOKUPS))
        self._swept += len(some)
        unrouted = without_route({target.address for _, target in some})
        self._lost.update((endpoint, None) for endpoint in some if endpoint[1].address in unrouted)
        found = list(islice(self._lost, at_most))
        for endpoint in found:
            del self._lost[endpoint]
        return [endpoint for endpoint in found if self._ejector.knows(*endpoint)]
