"""Resolves each Service and its EndpointSlices into frontends, by the present settings and drain requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Endpoint,
    Frontend,
    FrontendName,
    Scheduler,
    Service,
    ServiceName,
    Target,
    family_of,
)
from kubeproxy.proxier.drain_requests import Drains
from kubeproxy.proxier.drained_endpoints import set_aside, without_leaving
from kubeproxy.proxier.endpoint_selection import MOST, candidates, subset
from kubeproxy.proxier.frontends import NOT_SERVED, resolve
from kubeproxy.proxier.local_pods import LocalPods
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.restrictions import Admitted, admit
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings
from kubeproxy.proxier.slow_start import SlowStarts
from kubeproxy.proxier.tracker import Change, View

V = TypeVar("V")


class Resolution(NamedTuple):
    """The frontends of one Service."""

    service: ServiceName
    frontends: tuple[Frontend, ...]
    host_addresses: frozenset[Address]
    """The addresses at which the Service's ports are taken from processes of this host."""
    health_port_changed: bool
    """Whether the Service's health check node port has changed or was removed."""


_UNCOUNTED = (
    "the scheduler is least-connections, for which workers count what is open, and there are none, as"
    " kubeproxy.userspaceFallback is never: the kernel draws an endpoint for each connection"
)


class Resolver:
    """Holds the Services as their owning sources define them, and knows which of them have to be resolved again."""

    def __init__(self) -> None:
        self.owners: dict[ServiceName, str] = {}
        """The source of each Service."""
        self.health: dict[ServiceName, tuple[int, int]] = {}
        """The health check node ports, each with its number of ready endpoints on this node."""
        self.remarks: dict[ServiceName, tuple[str, ...]] = {}
        """Why parts of a Service are not served, by Service."""
        self.drains = Drains()
        self.slow_starts = SlowStarts()
        self.local_pods = LocalPods()
        self._settings = DEFAULTS
        self._views: dict[ServiceName, View] = {}
        self._stale: dict[ServiceName, None] = {}
        """The Services to resolve again, because something that their frontends depend on has changed."""

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on. The Services that depend on a changed setting become stale."""
        before, self._settings = self._settings, settings
        self.drains.use(settings.drains)
        self._stale.update(dict.fromkeys(name for name in self._views if self._depends(name, before)))
        moved = (it.address for it in settings.leaving ^ before.leaving)
        self._stale.update(dict.fromkeys(self.local_pods.services_at(moved)))

    def set_time(self, unix_now: float, now: float) -> None:
        """Set the time. A Service becomes stale if one of its drain requests has taken effect or expired, or if its
        slow start advances. `now` is from a monotonic clock, because a slow start must not go backwards when the Unix
        time is set."""
        self._stale.update(dict.fromkeys((*self.drains.advance(unix_now), *self.slow_starts.advance(now))))

    def next_time(self, unix_now: float, now: float) -> float:
        """Return when a Service will next become stale because of time, by the clock of `now`, or infinity if none
        will."""
        change, step = self.drains.next_change, self.slow_starts.next_step
        changes_at = math.inf if change is None else now + max(0.0, change - unix_now)
        return changes_at if step is None else min(changes_at, max(now, step))

    @property
    def has_stale(self) -> bool:
        """Return whether any Service has to be resolved again."""
        return bool(self._stale)

    def is_stale(self, name: ServiceName) -> bool:
        """Return whether a Service has to be resolved again."""
        return name in self._stale

    def absorb(self, changes: Iterable[Change]) -> Iterator[Resolution]:
        """Resolve the changed Services."""
        for change in changes:
            if change.after.service is None:
                self._views.pop(change.name, None)
            else:
                self._views[change.name] = change.after
            yield self._resolve(change.name, change.after)

    def refresh(self, limit: int) -> Iterator[Resolution]:
        """Resolve at most `limit` of the stale Services."""
        for name in list(islice(self._stale, limit)):
            yield self._resolve(name, self._views[name])

    # Methods that only read.

    def service(self, name: ServiceName) -> Service | None:
        """Return a Service as its owning source defines it."""
        view = self._views.get(name)
        return None if view is None else view.service

    def candidates(self, name: FrontendName) -> dict[Target, Endpoint]:
        """Return the endpoints of a frontend's service port in its family, selected or not.

        Endpoints that `restrictions` forbids are not included."""
        view = self._views.get(name.service_port.service)
        if view is None or view.service is None:
            return {}
        port = next((port for port in view.service.ports if port.name == name.service_port.port), None)
        if port is None:
            return {}
        slices = self.drains.slices(name.service_port.service)
        if slices is None:
            slices = self._admit(view.service, view).slices
        return {candidate.target: candidate.endpoint for candidate in candidates(slices, port, name.family)}

    def known_targets(self) -> Iterator[Target]:
        """Yield every endpoint of every Service, with each port of its slice, whether or not it is used."""
        for view in self._views.values():
            for each in view.slices if view.service is not None else ():
                for port in each.ports:
                    yield from (Target(endpoint.address, port.port) for endpoint in each.endpoints)

    # The steps of resolving.

    def _resolve(self, name: ServiceName, view: View) -> Resolution:
        self._stale.pop(name, None)
        settings, service = self._settings, view.service
        resolved, remarks = NOT_SERVED, list[str]()
        self.drains.note(name, service)
        self.local_pods.put(name, () if service is None else view.slices, settings.facts)
        if service is not None:
            service, slices, withheld = self._admit(service, view)
            resolved = resolve(service, self.drains.applied(name, slices), settings.facts, settings.scheduler)
            remarks += [*withheld, *service.remarks, *self._unserved(service, resolved.unreachable)]
            if service.scheduler is Scheduler.LEAST_CONNECTIONS and not settings.data_path.fallback:
                remarks.append(_UNCOUNTED)
        remarks += [f"also defined by {other}; the one of {view.owner} stays" for other in view.refused]
        frontends = []
        for frontend in resolved.frontends:
            if frontend.protocol not in settings.protocols or frontend.name.family not in settings.families:
                continue
            number = len(frontend.endpoints)
            if number > MOST:
                remarks.append(f"{frontend.name}: this node uses {MOST} of its {number} endpoints")
            if max(number, len(frontend.staying)) > MOST:
                frontend = self._thinned(frontend)
            frontends.append(frontend)
        _set_or_drop(self.remarks, name, tuple(remarks))
        _set_or_drop(self.owners, name, view.owner)
        port_before, _ = self.health.get(name, (0, 0))
        port, _ = resolved.health or (0, 0)
        _set_or_drop(self.health, name, resolved.health)
        host_addresses = frozenset[Address]() if service is None else self._host_addresses(service)
        weighted = self.slow_starts.applied(name, 0 if service is None else service.slow_start_s, frontends)
        return Resolution(name, weighted, host_addresses, health_port_changed=port != port_before)

    def _admit(self, service: Service, view: View) -> Admitted:
        """Return a Service without what `restrictions` forbids. Endpoints that an operator has taken out, or whose pods
        are leaving, are marked accordingly."""
        settings = self._settings
        admitted = admit(
            service, view.slices, source=view.owner, restrictions=settings.restrictions, facts=settings.facts
        )
        slices = without_leaving(set_aside(admitted.slices, settings.aside), settings.leaving)
        return admitted._replace(slices=slices)

    def _thinned(self, frontend: Frontend) -> Frontend:
        """Return a frontend with at most `MOST` endpoints, and at most `MOST` others that keep their flows."""
        node = self._settings.facts.name
        thinned = frontend.keeping(frozenset(subset(frontend.endpoints, node)))
        return replace(thinned, staying=subset(frontend.staying, node))

    def _unserved(self, service: Service, unreachable: Iterable[Address]) -> Iterator[str]:
        for port in service.ports:
            if port.protocol not in self._settings.protocols:
                yield f"port {port.name or port.port}: {port.protocol} is not served"
        for address in unreachable:
            yield (
                f"load balancer address {address} is not served: loadBalancerSourceRanges has no {family_of(address)}"
                " range, so no client may reach it"
            )

    def _host_addresses(self, service: Service) -> frozenset[Address]:
        """Return the value of `Resolution.host_addresses`. It never includes cluster IPs. If this host has one as an
        address, as with a node-local DNS cache, its own process there is meant to keep the port."""
        external = service.external_ips + service.load_balancer_ips
        return frozenset({*NODE_PORTS.values(), *filter(self._settings.facts.is_own, external)})

    # What depends on settings.

    def _depends(self, name: ServiceName, before: ProxierSettings) -> bool:
        """Return whether the frontends of a Service may change if `before` is replaced by the present settings."""
        view, now = self._views[name], self._settings
        if now.restrictions is not before.restrictions:
            return True
        if (now.families, now.protocols) != (before.families, before.protocols):
            return True
        if now.scheduler is not before.scheduler and view.service is not None and view.service.scheduler is None:
            return True
        uncounted = view.service is not None and view.service.scheduler is Scheduler.LEAST_CONNECTIONS
        if uncounted and now.data_path.fallback is not before.data_path.fallback:
            return True
        if now.drains is not before.drains and view.service is not None and view.service.drain:
            return True
        aside = {target.address for target in now.aside ^ before.aside}
        return _depends_on_facts(view, before.facts, now.facts) or bool(aside and _has_endpoint_in(view, aside))


def _depends_on_facts(view: View, before: NodeFacts, now: NodeFacts) -> bool:
    if before is now:
        return False
    if (before.name, before.zone, before.preserve) != (now.name, now.zone, now.preserve):
        return True
    moved = (before.own_addresses | before.node_addresses) ^ (now.own_addresses | now.node_addresses)
    if view.service is None or not moved:
        return False
    if not moved.isdisjoint(view.service.external_ips + view.service.load_balancer_ips):
        return True
    return _has_endpoint_in(view, moved)


def _has_endpoint_in(view: View, addresses: Set[Address]) -> bool:
    return any(endpoint.address in addresses for slice_ in view.slices for endpoint in slice_.endpoints)


def _set_or_drop(book: dict[ServiceName, V], service: ServiceName, value: V | None) -> None:
    """Set an entry, or remove it if the value is empty."""
    if value:
        book[service] = value
    else:
        book.pop(service, None)
