"""What every source says, and what changed since somebody last looked.

Rules of this file:

1. Nothing is decided here but *whose word counts*. A Service belongs to the first source that defines it; another
   that defines it too is refused until the first lets go. Endpoints count only from the source that owns the Service.
2. A source is invisible until it has listed both kinds, so that nothing is ever served half.
3. Before anything changes, the view of the Service as it was is put by (`_touch`), and kept until it is taken. What was
   changed and changed back meanwhile is so no work for anybody. (kube-proxy's change trackers do the same.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName

START_GRACE_S = 5.0
"""How long the complete sources wait for the others at start. They must not wait for ever: on a host whose manifests
define the address of the API server itself, the Kubernetes source completes only once the manifests are served."""


@dataclass(frozen=True, slots=True)
class View:
    """What counts about one Service: its owner's word."""

    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    """Sorted by name, so that equal sets are equal values."""
    owner: str = ""
    refused: tuple[str, ...] = ()
    """Other sources that define it too."""


NOTHING = View()


@dataclass(frozen=True, slots=True)
class Change:
    """How the view of one Service changed since it was last taken."""

    name: ServiceName
    before: View
    after: View

    def trigger_times(self) -> list[str]:
        """When the slices that are new here were changed in the cluster, as far as they say."""
        return [s.trigger_time for s in self.after.slices if s.trigger_time and s not in self.before.slices]


@dataclass(slots=True)
class ChangeCounter:
    """Changes of one kind of object; one that says nothing new is none."""

    total: int = 0
    pending: int = 0
    """Not in effect yet."""

    def count(self) -> None:
        """One more."""
        self.total += 1
        self.pending += 1


@dataclass(slots=True)
class _Store:
    """One source's objects."""

    services: dict[ServiceName, Service] = field(default_factory=dict)
    slices: dict[SliceName, EndpointSlice] = field(default_factory=dict)
    slices_of: dict[ServiceName, tuple[EndpointSlice, ...]] = field(default_factory=dict)
    services_listed: bool = False
    slices_listed: bool = False
    complete: bool = False


class Tracker:
    """A `Sink` for every source named, a `NodeSink`, and the memory of what changed.

    Like the sources it belongs to the event loop's thread.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self._start_grace_s = START_GRACE_S
        self._stores: dict[str, _Store] = {source: _Store() for source in sources}
        self._claims: dict[ServiceName, tuple[str, ...]] = {}
        """Complete sources that define a Service; the first owns it."""
        self._untaken: dict[ServiceName, View] = {}
        """What changed, with the view that was last taken."""
        self._complete_at = math.inf
        self._on_change: Callable[[], None] = _nobody
        self._on_node: Callable[[], None] = _nobody
        self.node: Node | None = None
        """This node, as it was last described; None: unknown, or (`node_known`) there is no such node."""
        self.node_known = False
        """Somebody has said whether there is such a node."""
        self.service_changes = ChangeCounter()
        self.slice_changes = ChangeCounter()

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever there may be something to take, or a source became complete."""
        self._on_change = on_change

    def notify_node(self, on_node: Callable[[], None]) -> None:
        """Call `on_node` whenever `node` has changed, and when it becomes known: whoever makes the proxier's
        `NodeFacts` makes them anew."""
        self._on_node = on_node

    # What the sources say.

    def set_node(self, node: Node | None) -> None:
        """This node is so described now; None: there is no such node."""
        if node != self.node or not self.node_known:
            self.node = node
            self.node_known = True
            self._on_node()

    def replace_services(self, source: str, services: Iterable[Service]) -> None:
        """All Services of this source, as of now; those not named are gone."""
        store, listed = self._stores[source], {service.name: service for service in services}
        for name in [name for name in store.services if name not in listed]:
            self._remove_service(source, name)
        for service in listed.values():
            self._put_service(source, service)
        store.services_listed = True
        self._complete_if_listed(source)
        self._on_change()

    def put_service(self, source: str, service: Service) -> None:
        """A Service is new or changed."""
        self._put_service(source, service)
        self._on_change()

    def remove_service(self, source: str, name: ServiceName) -> None:
        """A Service is gone, or is no longer ours to serve. Unknown names are fine."""
        self._remove_service(source, name)
        self._on_change()

    def replace_slices(self, source: str, slices: Iterable[EndpointSlice]) -> None:
        """All EndpointSlices of this source, as of now; those not named are gone."""
        store, listed = self._stores[source], {endpoint_slice.name: endpoint_slice for endpoint_slice in slices}
        for name in [name for name in store.slices if name not in listed]:
            self._remove_slice(source, name)
        for endpoint_slice in listed.values():
            self._put_slice(source, endpoint_slice)
        store.slices_listed = True
        self._complete_if_listed(source)
        self._on_change()

    def put_slice(self, source: str, endpoint_slice: EndpointSlice) -> None:
        """An EndpointSlice is new or changed."""
        self._put_slice(source, endpoint_slice)
        self._on_change()

    def remove_slice(self, source: str, name: SliceName) -> None:
        """An EndpointSlice is gone. Unknown names are fine."""
        self._remove_slice(source, name)
        self._on_change()

    # What somebody wants to know.

    def start_within(self, grace_s: float) -> None:
        """How long complete sources wait for the others, instead of `START_GRACE_S`; infinity: until all are."""
        self._start_grace_s = grace_s
        self._on_change()

    def ready_at(self, now: float) -> float:
        """When serving may begin: at once when all sources are complete, the start grace after the first of them was
        seen to be complete by a call of this, and never (infinity) while none is."""
        complete = sum(store.complete for store in self._stores.values())
        if not complete:
            return math.inf
        self._complete_at = min(self._complete_at, now)
        return self._complete_at if complete == len(self._stores) else self._complete_at + self._start_grace_s

    def sources(self) -> Mapping[str, bool]:
        """Every source, and whether it is complete."""
        return {source: store.complete for source, store in self._stores.items()}

    @property
    def untaken(self) -> int:
        """How many Services were touched since they were last taken."""
        return len(self._untaken)

    def take(self, limit: int) -> list[Change]:
        """Up to `limit` Services whose view changed since they were last taken, first touched, first taken."""
        changes: list[Change] = []
        while self._untaken and len(changes) < limit:
            for name in list(islice(self._untaken, limit - len(changes))):
                before, after = self._untaken.pop(name), self._view(name)
                if before != after:
                    changes.append(Change(name, before, after))
        if not self._untaken:
            # The data plane is told next; only Services wait for the kernel.
            self.slice_changes.pending = 0
        return changes

    def in_effect(self) -> None:
        """Everything taken is, and nothing is untaken."""
        self.service_changes.pending = 0

    # How they are put together.

    def _view(self, name: ServiceName) -> View:
        claims = self._claims.get(name)
        if not claims:
            return NOTHING
        owner = self._stores[claims[0]]
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
            claims = tuple(claimant for claimant in self._claims.pop(name) if claimant != source)
            if claims:
                self._claims[name] = claims
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
        for name in sorted(store.services):
            self._touch(name)
            self._claim(source, name)
        store.complete = True

    def _claim(self, source: str, name: ServiceName) -> None:
        claims = self._claims.get(name, ())
        if source not in claims:
            self._claims[name] = (*claims, source)


def _slice_name(endpoint_slice: EndpointSlice) -> SliceName:
    return endpoint_slice.name


def _nobody() -> None:
    """Nobody asked to be told."""
