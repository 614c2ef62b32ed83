"""The state of the proxier: wanted frontends, their listeners, proxy ports and rules.

It changes only between awaits. The Proxier sends the messages of `next_step` to the data plane and enters its answer
with `done`; it gives the rules to netfilter and enters the success with `applied`. A step without an answer (the task
was cancelled, the data plane broke) is decided again: every message states a wanted condition, so repeating one is
harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from kubeproxy.dataplane.messages import Listen, Message, Retire
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Claim,
    Destination,
    Endpoint,
    Frontend,
    FrontendName,
    Protocol,
    Service,
    ServiceName,
    Target,
    family_of,
)
from kubeproxy.model.drain_report import DrainState
from kubeproxy.proxier.data_path import Ejected
from kubeproxy.proxier.draining import set_aside
from kubeproxy.proxier.drains import Drains
from kubeproxy.proxier.endpoint_selection import MOST, candidates, subset
from kubeproxy.proxier.frontends import NOT_SERVED, resolve
from kubeproxy.proxier.host_ports import HostPorts
from kubeproxy.proxier.loops import Loops
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.plan import ListenerState, Move, bind_address, endpoints_of, plan
from kubeproxy.proxier.port_allocator import NoPort, Ports
from kubeproxy.proxier.port_claims import NodePortClaims
from kubeproxy.proxier.restrictions import Admitted, admit
from kubeproxy.proxier.ruleset_builder import Rules
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings
from kubeproxy.proxier.tracker import Change, View

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Step:
    """Messages for the data plane, and the frontends that they open, update and close."""

    listen: tuple[FrontendName, ...]
    update: tuple[FrontendName, ...]
    close: tuple[FrontendName, ...]
    messages: tuple[Message, ...]

    @property
    def names(self) -> tuple[FrontendName, ...]:
        """All frontends of the step."""
        return self.listen + self.update + self.close


class ProxierState:
    """The wanted and the existing frontends. Not for two tasks at once."""

    def __init__(self, ports: HostPorts, settings: ProxierSettings = DEFAULTS) -> None:
        self.ports = Ports(ports.reserver, settings.port_range)
        self.claims = NodePortClaims(ports, is_proxy_port=self.ports.holds)
        self.rules = Rules()
        self.wanted: dict[FrontendName, Frontend] = {}
        """Frontends without unavailable destinations, and without endpoints that lead back to this proxy."""
        self.listeners: dict[FrontendName, ListenerState] = {}
        self.owners: dict[ServiceName, str] = {}
        self.health: dict[ServiceName, tuple[int, int]] = {}
        """Health check node ports, and the number of ready endpoints on this node."""
        self.faults: dict[FrontendName, str] = {}
        """Frontends after a failed move, and its error. They wait for `retry`."""
        self._loops = Loops(is_proxy_port=self.ports.holds)
        self._left_out: dict[FrontendName, dict[Target, str]] = {}
        """Endpoints that lead back to this proxy, and what they are."""
        self._settings = DEFAULTS
        self._views: dict[ServiceName, View] = {}
        self._stale: dict[ServiceName, None] = {}
        """To be resolved again, because facts have changed on which they depend."""
        self._resolved: dict[FrontendName, Frontend] = {}
        """Frontends as resolved, before ports are refused."""
        self._frontends_of: dict[ServiceName, tuple[FrontendName, ...]] = {}
        self._remarks: dict[ServiceName, tuple[str, ...]] = {}
        self._unsettled: dict[FrontendName, None] = {}
        """Frontends that may have a move. (A dictionary for its order.)"""
        self._in_flight: tuple[FrontendName, ...] = ()
        self._waiting: dict[FrontendName, None] = {}
        """Frontends that may have a move once the rules are in force."""
        self._portless: dict[FrontendName, None] = {}
        """Of `faults`, frontends without a free port: they may have a move once a port is released."""
        self._applied = 0
        self._drains = Drains()
        self.use(settings)

    def use(self, settings: ProxierSettings) -> None:
        """Use these settings from now on. `refresh` resolves the Services again that depend on the difference."""
        before, self._settings = self._settings, settings
        self.rules.use(settings)
        self._loops.use_facts(settings.facts)
        self.ports.use_range(settings.port_range)
        self._stale.update(
            dict.fromkeys(name for name, view in self._views.items() if _depends(view, before, settings))
        )
        self._drains.use(settings.drains)
        if settings.bind != before.bind:
            self._unsettled.update(dict.fromkeys(self.listeners))
        if settings.restrictions is not before.restrictions:
            self._update_wanted(
                sorted(name for name in self.claims.use(settings.restrictions) if name in self._resolved)
            )
        if settings.restrictions is not before.restrictions or settings.port_range != before.port_range:
            self.retry()

    @property
    def rules_pending(self) -> bool:
        """Whether the kernel lacks a change."""
        return self.rules.generation != self._applied

    @property
    def settled(self) -> bool:
        """Whether everything absorbed is in effect, but for the faults."""
        return not (
            self._stale
            or self._unsettled
            or self._in_flight
            or self._waiting
            or self._loops.affected
            or not self.rules.is_balanced
            or self.rules_pending
        )

    @property
    def unavailable(self) -> set[FrontendName | Destination]:
        """What failed and is retried: frontends not opened or updated, and ports that other processes have."""
        return {*self.faults, *self.claims.awaited}

    def service(self, name: ServiceName) -> Service | None:
        """A Service as its owner defines it."""
        view = self._views.get(name)
        return None if view is None else view.service

    def candidates(self, name: FrontendName) -> dict[Target, Endpoint]:
        """The endpoints of a frontend's service port in its family, selected or not.

        Endpoints that `restrictions` withholds are left out, whatever their conditions."""
        view = self._views.get(name.service_port.service)
        ports = () if view is None or view.service is None else view.service.ports
        port = next((port for port in ports if port.name == name.service_port.port), None)
        if view is None or port is None:
            return {}
        slices = self._drains.slices(name.service_port.service)
        if slices is None:
            slices = () if view.service is None else self._admit(view.service, view).slices
        return {it.target: it.endpoint for it in candidates(slices, port, name.family)}

    def _admit(self, service: Service, view: View) -> Admitted:
        """What is left of a Service after restrictions, and its endpoints without those that are taken out by hand."""
        admitted = admit(
            service,
            view.slices,
            source=view.owner,
            restrictions=self._settings.restrictions,
            facts=self._settings.facts,
        )
        return admitted._replace(slices=set_aside(admitted.slices, self._settings.aside))

    # Drain requests.

    def expire_drains(self, unix_now: float) -> None:
        """Set the time by which drain requests expire; `refresh` resolves those Services again that have such."""
        self._stale.update(dict.fromkeys(self._drains.expire(unix_now)))

    @property
    def next_drain_expiry(self) -> float | None:
        """When the next drain request expires, in Unix seconds; None: there is none."""
        return self._drains.next_expiry

    def drain_states(self) -> dict[ServiceName, DrainState]:
        """What is in effect of each Service's drain requests."""
        return self._drains.states(
            self._in_effect, lambda name: [self.wanted[frontend] for frontend in self._frontends_of.get(name, ())]
        )

    def _in_effect(self, name: ServiceName) -> bool:
        """Whether data plane and kernel serve a Service as it was last absorbed. A listener without a port serves no
        client, so it keeps nothing from being in effect."""
        return name not in self._stale and all(
            self._serves_as_wanted(frontend) for frontend in self._frontends_of.get(name, ())
        )

    def _serves_as_wanted(self, name: FrontendName) -> bool:
        listener, wanted = self.listeners.get(name), self.wanted[name]
        if listener is None:
            return name in self.faults
        known = listener.in_rules == wanted and self._applied >= listener.rules_generation
        return known and listener.confirmed and listener.sent == endpoints_of(wanted)

    # Wanted frontends.

    def absorb(self, changes: Iterable[Change]) -> None:
        """Resolve changed Services."""
        for change in changes:
            if change.after.service is None:
                self._views.pop(change.name, None)
            else:
                self._views[change.name] = change.after
            self._resolve(change.name, change.after)

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """The frontends of this protocol that have an endpoint."""
        return tuple(name for name in self._loops.frontends_at(target) if self.wanted[name].protocol is protocol)

    def use_ejected(self, ejected: Ejected) -> None:
        """Have the kernel lead no new connections to these endpoints."""
        if ejected is not self.rules.ejected and (moved := ejected.items() ^ self.rules.ejected.items()):
            names = {name for (_, target), _ in moved for name in self._loops.frontends_at(target)}
            self.rules.use_ejected(ejected, sorted(names))

    def refresh(self, limit: int) -> int:
        """Resolve again up to `limit` Services with changed facts; the number of them."""
        names = list(islice(self._stale, limit))
        for name in names:
            self._resolve(name, self._views[name])
        return len(names)

    def _resolve(self, name: ServiceName, view: View) -> None:
        self._stale.pop(name, None)
        service, resolved, remarks = view.service, NOT_SERVED, list[str]()
        self._drains.note(name, service)
        if service is not None:
            service, slices, withheld = self._admit(service, view)
            resolved = resolve(service, self._drains.applied(name, slices), self._settings.facts)
            remarks += [*withheld, *self._unserved(service, resolved.unreachable)]
        served = tuple(
            f
            for f in resolved.frontends
            if f.protocol in self._settings.protocols and f.name.family in self._settings.families
        )
        many = [frontend for frontend in served if len(frontend.endpoints) > MOST]
        if many:
            served = tuple(self._thinned(frontend) if frontend in many else frontend for frontend in served)
        self._set_wanted(name, served, set() if service is None else self._ports_of_ours(service))
        remarks += [f"also defined by {other}; the one of {view.owner} stays" for other in view.refused]
        remarks += [
            f"{frontend.name}: this node uses {MOST} of its {len(frontend.endpoints)} endpoints" for frontend in many
        ]
        _set_or_drop(self._remarks, name, tuple(remarks))
        _set_or_drop(self.owners, name, view.owner)
        before, _ = self.health.get(name, (0, 0))
        _set_or_drop(self.health, name, resolved.health)
        if self.health.get(name, (0, 0))[0] != before:
            ports = {port: it for it, (port, _) in self.health.items()}
            self._update_wanted(
                sorted(name for name in self.claims.reserve_for_health(ports) if name in self._resolved)
            )

    def _thinned(self, frontend: Frontend) -> Frontend:
        """A frontend with at most `MOST` endpoints."""
        endpoints = subset(frontend.endpoints, self._settings.facts.name)
        return replace(frontend, endpoints=endpoints, preserve=frontend.preserve.intersection(endpoints))

    def _unserved(self, service: Service, unreachable: Iterable[Address]) -> Iterator[str]:
        for port in service.ports:
            if port.protocol not in self._settings.protocols:
                yield f"port {port.name or port.port}: {port.protocol} is not served"
        for address in unreachable:
            yield (
                f"load balancer address {address} is not served: loadBalancerSourceRanges has no {family_of(address)}"
                " range, so no client may reach it"
            )

    def _ports_of_ours(self, service: Service) -> set[Address]:
        """Addresses at which a Service takes ports from processes of this host. Never cluster IPs: where this host has
        one of them, as with a node-local DNS cache, its process is meant to have the port beside us."""
        portals = service.external_ips + service.load_balancer_ips
        return {*NODE_PORTS.values(), *filter(self._settings.facts.is_own, portals)}

    def _takes_local_port(self, destination: Destination) -> bool:
        """Whether a rule takes a port from processes of this host, still wanted or not."""
        ours = destination.address in NODE_PORTS.values() or self._settings.facts.is_own(destination.address)
        return ours and destination in self.rules.claims

    def _set_wanted(self, service: ServiceName, frontends: tuple[Frontend, ...], claimed: Set[Address]) -> None:
        names = tuple(frontend.name for frontend in frontends)
        granted: set[FrontendName] = set()
        for name in self._frontends_of.get(service, ()):
            if name not in names:
                asked, wanted = self._resolved.pop(name), self.wanted.pop(name)
                self._left_out.pop(name, None)
                self._loops.endpoints_changed(name, asked.endpoints, ())
                self._loops.destinations_changed(_allocated(wanted), frozenset())
                self._unsettled[name] = None
                granted |= self.claims.claim(name, frozenset())
        for frontend in frontends:
            before = self._resolved.get(frontend.name)
            self._loops.endpoints_changed(frontend.name, before.endpoints if before else (), frontend.endpoints)
            self._resolved[frontend.name] = frontend
            claims = frozenset(d for d in _takes(frontend) if d.address in claimed)
            external = {d for d in claims if frontend.claims.get(d) is Claim.EXTERNAL}
            granted |= self.claims.claim(frontend.name, claims, external=external)
        _set_or_drop(self._frontends_of, service, names)
        self._update_wanted((*names, *sorted(name for name in granted if name in self._resolved and name not in names)))

    def _update_wanted(self, names: Iterable[FrontendName]) -> None:
        """Set what is wanted of frontends: available destinations, and endpoints that do not lead back here."""
        for name in names:
            asked, unavailable = self._resolved[name], self.claims.unavailable(name)
            frontend = asked
            if unavailable:
                frontend = replace(
                    asked,
                    destinations=asked.destinations - unavailable,
                    own_destinations=asked.own_destinations - unavailable,
                    ranged=asked.ranged - unavailable,
                )
            before = self.wanted.get(name)
            self._loops.destinations_changed(_allocated(before) if before else frozenset(), _allocated(frontend))
            self._put(name, frontend)
        self._leave_out()

    def _leave_out(self) -> None:
        """Update frontends with endpoints that have begun or ceased to lead back here."""
        affected = self._loops.affected
        while affected:
            name = next(iter(affected))
            del affected[name]
            if name in self.wanted:
                asked = self._resolved[name]
                self._put(name, replace(self.wanted[name], endpoints=asked.endpoints, preserve=asked.preserve))

    def _put(self, name: FrontendName, frontend: Frontend) -> None:
        """Set a wanted frontend, without the endpoints that lead back here."""
        if looping := self._loops.leading_back(frontend):
            self._left_out[name] = looping
            frontend = replace(
                frontend,
                endpoints=tuple(target for target in frontend.endpoints if target not in looping),
                preserve=frontend.preserve.difference(looping),
            )
        else:
            self._left_out.pop(name, None)
        if self.wanted.get(name) != frontend:
            self.wanted[name] = frontend
            self._unsettled[name] = None

    def retry(self) -> None:
        """Try again what failed."""
        self._unsettled.update(dict.fromkeys(self.faults))
        self._update_wanted(sorted(self.claims.retry()))

    # Moves.

    def next_step(self, limit: int) -> Step | None:
        """The next messages for the data plane, about at most `limit` frontends; None: there are none.

        Moves without a message are made on the way: ports are reserved, rules are changed.
        """
        self._unsettled.update(dict.fromkeys(self._in_flight))
        self._in_flight = ()
        self._leave_out()
        while self._unsettled:
            step = self._step_of(list(islice(self._unsettled, limit)))
            if step.messages:
                self._in_flight = step.names
                return step
        return None

    def _step_of(self, names: list[FrontendName]) -> Step:
        for name in names:
            del self._unsettled[name]
            self._waiting.pop(name, None)
            self._portless.pop(name, None)
            self.faults.pop(name, None)
        moves = plan(names, self.wanted, self.listeners, bind=self._settings.bind, applied=self._applied)
        for name in moves.of(Move.ADD_RULE):
            self._update_rules(name, self.wanted[name])
        for name in moves.of(Move.REMOVE_RULE):
            self._update_rules(name, None)
        self._waiting.update(dict.fromkeys(moves.of(Move.WAIT)))
        for name in moves.of(Move.UPDATE):
            # The kernel path does not wait for the data plane.
            self.rules.lead(self.wanted[name])
        listen = tuple(name for name in moves.of(Move.OPEN) if self._reserve(name)) + moves.of(Move.LISTEN)
        update, close = moves.of(Move.UPDATE), moves.of(Move.CLOSE)
        messages: list[Message] = []
        for name in listen:
            listener = self.listeners[name]
            messages.append(Listen(name, listener.protocol, listener.address, listener.reservation.port))
            messages.append(endpoints_of(self.wanted[name]))
        messages += [endpoints_of(self.wanted[name]) for name in update]
        messages += [Retire(name) for name in close]
        return Step(listen, update, close, tuple(messages))

    def _update_rules(self, name: FrontendName, frontend: Frontend | None) -> None:
        listener, before = self.listeners[name], self.rules.generation
        if frontend is None:
            self.rules.remove(name)
        else:
            self.rules.put(frontend, listener.reservation.port)
        if self.rules.generation != before:
            listener.rules_generation = self.rules.generation
        listener.in_rules = frontend
        self._unsettled[name] = None

    def _reserve(self, name: FrontendName) -> bool:
        frontend, address = self.wanted[name], bind_address(self._settings.bind, name.family)
        try:
            reservation = self.ports.reserve(frontend.protocol, address)
        except NoPort as error:
            self.faults[name] = str(error)
            self._portless[name] = None
            return False
        self.listeners[name] = ListenerState(frontend.protocol, address, reservation)
        self._loops.proxy_port_changed(frontend.protocol, reservation.port)
        return True

    def _drop(self, name: FrontendName) -> None:
        listener = self.listeners.pop(name)
        port = listener.reservation.port
        self.ports.release(listener.protocol, listener.reservation)
        self._loops.proxy_port_changed(listener.protocol, port)
        self._unsettled.update(self._portless)

    # Results.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> None:
        """The data plane has carried out a step, except for these frontends."""
        self._in_flight = ()
        for name in step.listen + step.update:
            listener = self.listeners[name]
            if name not in failures:
                listener.confirmed, listener.sent = True, endpoints_of(self.wanted[name])
            elif listener.sent is None:
                self._drop(name)  # it never listened, so no rule redirects there
            else:
                listener.confirmed = False  # the data plane may have lost it: begin with Listen next time
        for name in step.close:
            if name not in failures:
                self._drop(name)
        for name in step.names:
            if name in failures:
                self.faults[name] = failures[name]
            else:
                self._unsettled[name] = None
        if any(name not in failures for name in step.close):
            self.retry()  # ports may be free now

    def applied(self, generation: int) -> None:
        """Rules of this generation are in force. (None changes between their making and this call.)"""
        self._applied = generation
        self._unsettled.update(self._waiting)
        self._update_wanted(sorted(self.claims.release(self._takes_local_port)))

    def close(self) -> None:
        """Release all ports."""
        for name in list(self.listeners):
            self._drop(name)
        self.claims.close()

    # Problems.

    def problems(self) -> dict[ServiceName, tuple[str, ...]]:
        """The Services that are not, or not wholly, served, and why."""
        found = self._remarks.copy()
        for name, fault in self.faults.items():
            service = name.service_port.service
            found[service] = (*found.get(service, ()), f"{name}: {fault}")
        for name, reason in self.rules.unled.items():
            service = name.service_port.service
            fault = f"{name}: clients are refused, as kubeproxy.userspaceFallback is never: {reason}"
            found[service] = (*found.get(service, ()), fault)
        for name, looping in self._left_out.items():
            service = name.service_port.service
            found[service] = (*found.get(service, ()), f"{name}: {_looping(looping)}")
        for destination, fault in (*self.claims.faults.items(), *self.claims.notes.items()):
            for service in sorted({name.service_port.service for name in self.claims.claimants(destination)}):
                found[service] = (*found.get(service, ()), fault)
        for destination, holder, claim, others in self.rules.claims.contests():
            for name, lesser in others.items():
                service = name.service_port.service
                reason = _REASONS[claim] if claim < lesser else "which comes first"
                fault = f"{name}: {_words(destination)} belongs to {holder}, {reason}"
                found[service] = (*found.get(service, ()), fault)
        return found


def _depends(view: View, before: ProxierSettings, now: ProxierSettings) -> bool:
    """Return whether a change of settings may change the frontends of a Service."""
    if now.restrictions is not before.restrictions:
        return True
    if (now.families, now.protocols) != (before.families, before.protocols):
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
    return any(endpoint.address in addresses for it in view.slices for endpoint in it.endpoints)


_REASONS = {
    Claim.ALLOCATED: "to which it is allocated",
    Claim.LOAD_BALANCER: "which has it as load balancer address",
}
"""Why a destination belongs to its holder and not to a Service with a lesser claim."""


def _allocated(frontend: Frontend) -> frozenset[Destination]:
    """The destinations that the cluster allocated: cluster IPs and node ports.

    An external address may name another tenant's pod, and that endpoint must stay. A dial to one is marked,
    so this node does not redirect it, and the hop limit ends a loop over several nodes."""
    taken = _takes(frontend)
    if not frontend.claims:
        return taken
    return frozenset(d for d in taken if frontend.claims.get(d, Claim.ALLOCATED) is Claim.ALLOCATED)


def _takes(frontend: Frontend) -> frozenset[Destination]:
    """All destinations of a frontend, from any source."""
    if not frontend.own_destinations:
        return frontend.destinations
    return frontend.destinations | frontend.own_destinations


def _looping(endpoints: Mapping[Target, str]) -> str:
    (target, what), more = next(iter(endpoints.items())), len(endpoints) - 1
    others = f", as do {more} more" if more else ""
    return f"endpoint {target} is left out: it is {what}, so it leads back to this proxy{others}"


def _words(destination: Destination) -> str:
    if destination.address in NODE_PORTS.values():
        return f"{destination.protocol} node port {destination.port}"
    return f"{destination.protocol} {Target(destination.address, destination.port)}"


def _set_or_drop(book: dict[ServiceName, V], service: ServiceName, value: V | None) -> None:
    """Set an entry, or remove it if the value is empty."""
    if value:
        book[service] = value
    else:
        book.pop(service, None)
