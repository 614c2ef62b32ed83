"""The state of the proxier, which turns a changed Service into messages for the data plane and rules.

A change passes through four parts, each of which knows only those before it:

    resolver       a Service and its slices  ->  frontends
    availability   frontends                 ->  wanted frontends, without what this host cannot serve
    listeners      wanted frontends          ->  steps for the data plane, and changes of the rules
    rules          serving frontends         ->  RuleSet

The state never changes across an await. The Proxier sends the messages of `next_step` to the data plane and passes the
answer to `done`. KernelSync gives the rules to netfilter, and the Proxier reports the success to `applied`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeproxy.model import NODE_PORTS, Destination, FrontendName, Protocol, ServiceName, Target
from kubeproxy.model.drain_report import DrainState
from kubeproxy.proxier.availability import Availability
from kubeproxy.proxier.data_path_choice import Ejected
from kubeproxy.proxier.listeners import Listeners, Step
from kubeproxy.proxier.port_allocator import Ports
from kubeproxy.proxier.port_claims import NodePortClaims
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.problems import problems
from kubeproxy.proxier.resolver import Resolution, Resolver
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings
from kubeproxy.proxier.tracker import Change


class ProxierState:
    """The four parts, and the steps between them. Only one task at a time may use it."""

    def __init__(self, ports: PortSystemCalls, settings: ProxierSettings = DEFAULTS) -> None:
        proxy_ports = Ports(ports.reserver, settings.port_range)
        claims = NodePortClaims(ports, is_proxy_port=proxy_ports.holds)
        self.resolver = Resolver()
        self.availability = Availability(claims, is_proxy_port=proxy_ports.holds)
        self.rules = RuleSetBuilder()
        self.listeners = Listeners(proxy_ports, self.availability, self.rules)
        self._facts = settings.facts
        self._pods_seen = 0
        """The value of `LocalPods.changes` when the rules last got the pods."""
        self.use(settings)

    @property
    def settled(self) -> bool:
        """Return whether every absorbed change is in effect, apart from faults."""
        return not (
            self.resolver.has_stale
            or self.availability.is_undecided
            or not self.listeners.settled
            or not self.rules.is_balanced
            or self.listeners.rules_pending
        )

    @property
    def unavailable(self) -> set[FrontendName | Destination]:
        """Return what will be retried: frontends that could not be opened or updated, and destinations whose ports
        other processes use."""
        return {*self.listeners.faults, *self.availability.claims.awaited}

    # From changes to messages.

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on. `next_step` resolves the Services that depend on the differences."""
        self._facts = settings.facts
        self.resolver.use(settings)
        self.rules.use(settings)
        self.availability.use(settings)
        self.listeners.use(settings)

    def use_ejected(self, ejected: Ejected) -> None:
        """Set the endpoints that get no new connections from the kernel."""
        if ejected is not self.rules.ejected and (moved := ejected.items() ^ self.rules.ejected.items()):
            names = {name for (_, target), _ in moved for name in self.availability.frontends_at(target)}
            self.rules.use_ejected(ejected, sorted(names))

    def absorb(self, changes: Iterable[Change]) -> None:
        """Resolve the changed Services."""
        for resolution in self.resolver.absorb(changes):
            self._put(resolution)

    def next_step(self, limit: int) -> Step | None:
        """Resolve up to `limit` stale Services, and return the next messages, for about `limit` frontends at most.
        Return None if there are none."""
        for resolution in self.resolver.refresh(limit):
            self._put(resolution)
        self.availability.leave_out()
        return self.listeners.next_step(limit)

    def _put(self, resolution: Resolution) -> None:
        self.availability.put(resolution)
        if self._pods_seen != self.resolver.local_pods.changes:
            self._pods_seen = self.resolver.local_pods.changes
            self.rules.use_pods(self.resolver.local_pods.ports)
        if resolution.health_port_changed:
            self.availability.reserve_for_health(self.resolver.health)

    # Results of messages.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> None:
        """Record that the data plane has carried out a step. `failures` has the frontends for which it failed, each
        with the error."""
        if self.listeners.done(step, failures):
            self.retry()

    def applied(self, generation: int) -> None:
        """Record that rules of this generation are in force."""
        self.listeners.applied(generation)
        self.availability.release(self._takes_local_port)

    def _takes_local_port(self, destination: Destination) -> bool:
        """Return whether a rule redirects a port that processes of this host could use, even if it is no longer
        wanted."""
        is_own = destination.address in NODE_PORTS.values() or self._facts.is_own(destination.address)
        return is_own and destination in self.rules.claims

    def retry(self) -> None:
        """Retry everything that failed."""
        self.listeners.retry()
        self.availability.retry()

    def close(self) -> None:
        """Release all ports."""
        self.listeners.close()
        self.availability.claims.close()

    # Methods that only read.

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        """Return the frontends of this protocol that have an endpoint."""
        wanted = self.availability.wanted
        return tuple(name for name in self.availability.frontends_at(target) if wanted[name].protocol is protocol)

    def problems(self) -> dict[ServiceName, tuple[str, ...]]:
        """Return the Services that are not served, or only in part, each with the reasons."""
        return problems(self.resolver.remarks, self.listeners.faults, self.availability, self.rules)

    def drain_states(self) -> dict[ServiceName, DrainState]:
        """Return the state of each Service's drain requests."""
        wanted, frontends_of = self.availability.wanted, self.availability.frontends_of
        return self.resolver.drains.states(
            self._in_effect, lambda name: [wanted[frontend] for frontend in frontends_of(name)]
        )

    def _in_effect(self, name: ServiceName) -> bool:
        """Return whether the data plane and the kernel serve a Service as it was last absorbed."""
        frontends = self.availability.frontends_of(name)
        return not self.resolver.is_stale(name) and all(map(self.listeners.serves_as_wanted, frontends))
