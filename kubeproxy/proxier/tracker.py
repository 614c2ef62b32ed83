"""Tracks the objects of every source, and what has changed since `take` was last called.

The rules:

1. A Service belongs to the first source that defines it. Other sources that define the same Service are refused until
   the owner removes it. Endpoints count only from the source that owns the Service.
2. A source is ignored until it has listed Services and slices, so that no Service is served with half of its objects.
3. Until then, the objects that an earlier process had from the source may be served instead (`recall`).
4. Before a change, the view of the Service is saved (`_touch`) and kept until the change is taken. So a change that is
   reverted meanwhile causes no work. (kube-proxy's change trackers do the same.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName
from kubeproxy.model.drain_request import DrainRequests

START_GRACE_S = 5.0
"""How long complete sources wait for the others at start. The wait is bounded because a manifest may define the Service
of the API server itself. Then the Kubernetes source can complete only after the manifests are served."""


@dataclass(frozen=True, slots=True)
class View:
    """A Service and its slices as the owning source defines them."""

    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    """The slices, sorted by name, so that equal sets are equal values."""
    owner: str = ""
    refused: tuple[str, ...] = ()
    """The other sources that define the Service, too."""


NOTHING = View()


@dataclass(frozen=True, slots=True)
class Change:
    """How the view of a Service has changed since it was last taken."""

    name: ServiceName
    before: View
    after: View

    def trigger_times(self) -> list[str]:
        """Return the trigger times of the new slices that have one."""
        return [s.trigger_time for s in self.after.slices if s.trigger_time and s not in self.before.slices]


@dataclass(slots=True)
class ChangeCounter:
    """Counts changes of one kind of object. Setting an equal object is no change."""

    total: int = 0
    pending: int = 0
    """The number of changes that are not in effect yet."""

    def count(self) -> None:
        """Count a change."""
        self.total += 1
        self.pending += 1


@dataclass(slots=True)
class _Store:
    """The objects of one source."""

    services: dict[ServiceName, Service] = field(default_factory=dict)
    slices: dict[SliceName, EndpointSlice] = field(default_factory=dict)
    slices_of: dict[ServiceName, tuple[EndpointSlice, ...]] = field(default_factory=dict)
    services_listed: bool = False
    slices_listed: bool = False
    complete: bool = False


class Tracker:
    """A `Sink` for every named source, a `NodeSink`, and the record of changes. All calls come from the event loop's
    thread."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._start_grace_s = START_GRACE_S
        self._stores: dict[str, _Store] = {source: _Store() for source in sources}
        self._recalled: dict[str, _Store] = {}
        """The objects of an earlier process that are served in place of sources that are not complete yet."""
        self._claims: dict[ServiceName, tuple[str, ...]] = {}
        """For each Service, the complete sources that define it. The first of them owns the Service."""
        self._untaken: dict[ServiceName, View] = {}
        """The changed Services, each with the view of it that was last taken."""
        self._complete_at = math.inf
        self._on_change: Callable[[], None] = _ignore
        self._on_node: Callable[[], None] = _ignore
        self.node: Node | None = None
        """The Node object of this node. None means that it is unknown or, if `node_known` is true, that it does not
        exist."""
        self.node_known = False
        """Whether a source has reported the Node object, or that it does not exist."""
        self.service_changes = ChangeCounter()
        self.slice_changes = ChangeCounter()

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever there may be changes to take, or a source has become complete."""
        self._on_change = on_change

    def notify_node(self, on_node: Callable[[], None]) -> None:
        """Call `on_node` whenever `node` changes or becomes known. The proxier's `NodeFacts` then have to be computed
        again."""
        self._on_node = on_node

    # Calls by the sources.

    def set_node(self, node: Node | None) -> None:
        """Set the Node object, or None if it does not exist."""
        if node != self.node or not self.node_known:
            self.node = node
            self.node_known = True
            self._on_node()

    def replace_services(self, source: str, services: Iterable[Service]) -> None:
        """Set all Services of a source. Services that are not listed are removed."""
        store, listed = self._stores[source], {service.name: service for service in services}
        for name in [name for name in store.services if name not in listed]:
            self._remove_service(source, name)
        for service in listed.values():
            self._put_service(source, service)
        store.services_listed = True
        self._complete_if_listed(source)
        self._on_change()

    def put_service(self, source: str, service: Service) -> None:
        """Add or change a Service."""
        self._put_service(source, service)
        self._on_change()

    def remove_service(self, source: str, name: ServiceName) -> None:
        """Remove a Service that was deleted, or that is not to be served any more. An unknown name is ignored."""
        self._remove_service(source, name)
        self._on_change()

    def replace_slices(self, source: str, slices: Iterable[EndpointSlice]) -> None:
        """Set all EndpointSlices of a source. Slices that are not listed are removed."""
        store, listed = self._stores[source], {endpoint_slice.name: endpoint_slice for endpoint_slice in slices}
        for name in [name for name in store.slices if name not in listed]:
            self._remove_slice(source, name)
        for endpoint_slice in listed.values():
            self._put_slice(source, endpoint_slice)
        store.slices_listed = True
        self._complete_if_listed(source)
        self._on_change()

    def put_slice(self, source: str, endpoint_slice: EndpointSlice) -> None:
        """Add or change an EndpointSlice."""
        self._put_slice(source, endpoint_slice)
        self._on_change()

    def remove_slice(self, source: str, name: SliceName) -> None:
        """Remove an EndpointSlice. An unknown name is ignored."""
        self._remove_slice(source, name)
        self._on_change()

    # Calls by the proxier and the daemon.

    def recall(self, source: str, services: Iterable[Service], slices: Iterable[EndpointSlice]) -> None:
        """Serve these objects, which an earlier process had from this source, until the source is complete."""
        if source not in self._stores or self._stores[source].complete:
            return
        recalled = self._recalled[source] = _Store(complete=True)
        for service in services:
            recalled.services[service.name] = service
        for endpoint_slice in slices:
            recalled.slices[endpoint_slice.name] = endpoint_slice
            recalled.slices_of[endpoint_slice.service] = (
                *recalled.slices_of.get(endpoint_slice.service, ()),
                endpoint_slice,
            )
        for name in sorted(recalled.services):
            recalled.slices_of[name] = tuple(sorted(recalled.slices_of.get(name, ()), key=_slice_name))
            self._touch(name)
            self._claim(source, name)
        self._on_change()

    def recall_node(self, node: Node) -> None:
        """Use this Node object from an earlier process until a source reports one."""
        if not self.node_known:
            self.node = node
            self._on_node()

    def served(self) -> dict[str, tuple[list[Service], list[EndpointSlice]]]:
        """Return the served objects of every source: its own if the source is complete, and otherwise the recalled
        ones."""
        served = {source: self._recalled.get(source, store) for source, store in self._stores.items()}
        return {
            source: ([*store.services.values()], [*store.slices.values()])
            for source, store in served.items()
            if store.complete
        }

    def start_within(self, grace_s: float) -> None:
        """Set how long complete sources wait for the others, instead of `START_GRACE_S`. With infinity they wait until
        all are complete."""
        self._start_grace_s = grace_s
        self._on_change()

    def ready_at(self, now: float) -> float:
        """Return when serving may begin. That is at once if all sources are complete or recalled. Otherwise it is when
        the start grace ends, which begins when this method is first called with at least one source complete or
        recalled. Return infinity if there is no such source."""
        complete = sum(store.complete or source in self._recalled for source, store in self._stores.items())
        if not complete:
            return math.inf
        self._complete_at = min(self._complete_at, now)
        return self._complete_at if complete == len(self._stores) else self._complete_at + self._start_grace_s

    def sources(self) -> Mapping[str, bool]:
        """Return every source with whether it is complete."""
        return {source: store.complete for source, store in self._stores.items()}

    @property
    def services(self) -> int:
        """Return the number of Services in complete and recalled sources."""
        return len(self._claims)

    @property
    def untaken(self) -> int:
        """Return the number of Services that may have changed since they were last taken."""
        return len(self._untaken)

    def take(self, limit: int) -> list[Change]:
        """Return up to `limit` changed Services, and remove them from the record of changes. Those that changed first
        come first."""
        changes: list[Change] = []
        while self._untaken and len(changes) < limit:
            for name in list(islice(self._untaken, limit - len(changes))):
                before, after = self._untaken.pop(name), self._view(name)
                if before != after:
                    changes.append(Change(name, before, after))
        if not self._untaken:
            # A change of slices takes effect with the update of the data plane, which follows. Only changes of Services
            # wait for the kernel.
            self.slice_changes.pending = 0
        return changes

    def in_effect(self) -> None:
        """Record that all taken changes are in effect."""
        self.service_changes.pending = 0

    def drain_requests(self) -> dict[ServiceName, DrainRequests]:
        """Return the drain requests of all Services that have some, whether or not the Service was taken."""
        return {
            name: service.drain
            for store in self._stores.values()
            for name, service in store.services.items()
            if service.drain is not None
        }

    # Views of Services.

    def owner_of(self, name: ServiceName) -> str | None:
        """Return the source that owns a Service, or None if no source defines it."""
        return next(iter(self._claims.get(name, ())), None)

    def _view(self, name: ServiceName) -> View:
        claims = self._claims.get(name)
        if not claims:
            return NOTHING
        owner = self._recalled.get(claims[0]) or self._stores[claims[0]]
        return View(owner.services[name], owner.slices_of.get(name, ()), claims[0], claims[1:])

    def _touch(self, name: ServiceName) -> None:
        if name not in self._untaken:
            self._untaken[name] = self._view(name)

    def _put_service(self, source: str, service: Service) -> None:
        store = self._stores[source]
        if store.services.get(service.name) == service:
            return
        self.service_changes.count()
        if store.complete:
            self._touch(service.name)
            self._claim(source, service.name)
        store.services[service.name] = service

    def _remove_service(self, source: str, name: ServiceName) -> None:
        store = self._stores[source]
        if name not in store.services:
            return
        self.service_changes.count()
        if store.complete:
            self._touch(name)
            self._disclaim(source, name)
        del store.services[name]

    def _put_slice(self, source: str, endpoint_slice: EndpointSlice) -> None:
        store = self._stores[source]
        known = store.slices.get(endpoint_slice.name)
        if known == endpoint_slice:
            return
        self.slice_changes.count()
        if known is not None:
            self._set_slices(source, known.service, without=known)
        self._set_slices(source, endpoint_slice.service, plus=endpoint_slice)
        store.slices[endpoint_slice.name] = endpoint_slice

    def _remove_slice(self, source: str, name: SliceName) -> None:
        store = self._stores[source]
        known = store.slices.pop(name, None)
        if known is not None:
            self.slice_changes.count()
            self._set_slices(source, known.service, without=known)

    def _set_slices(
        self,
        source: str,
        service: ServiceName,
        *,
        without: EndpointSlice | None = None,
        plus: EndpointSlice | None = None,
    ) -> None:
        if self._claims.get(service, ("",))[0] == source:
            self._touch(service)
        slices_of = self._stores[source].slices_of
        slices = [s for s in slices_of.get(service, ()) if s is not without]
        if plus is not None:
            slices.append(plus)
            slices.sort(key=_slice_name)
        if slices:
            slices_of[service] = tuple(slices)
        else:
            slices_of.pop(service, None)

    def _complete_if_listed(self, source: str) -> None:
        store = self._stores[source]
        if store.complete or not (store.services_listed and store.slices_listed):
            return
        recalled = self._recalled.get(source, _Store())
        for name in sorted(store.services.keys() | recalled.services.keys()):
            self._touch(name)
        self._recalled.pop(source, None)
        for name in recalled.services.keys() - store.services.keys():
            self._disclaim(source, name)
        for name in sorted(store.services):
            self._claim(source, name)
        store.complete = True

    def _claim(self, source: str, name: ServiceName) -> None:
        claims = self._claims.get(name, ())
        if source not in claims:
            self._claims[name] = (*claims, source)

    def _disclaim(self, source: str, name: ServiceName) -> None:
        claims = tuple(claimant for claimant in self._claims.pop(name) if claimant != source)
        if claims:
            self._claims[name] = claims


def _slice_name(endpoint_slice: EndpointSlice) -> SliceName:
    return endpoint_slice.name


def _ignore() -> None:
    """Do nothing, as the default callback."""
