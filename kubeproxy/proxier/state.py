"""The state of the proxier, from a changed Service to the next messages and rules.

A change passes four parts, each of which knows only those before it:

    resolver       a Service and its slices  ->  frontends
    availability   frontends                 ->  wanted frontends, without what this host cannot serve
    listeners      wanted frontends          ->  steps for the data plane, and changes of the rules
    rules          serving frontends         ->  RuleSet

The state changes only between awaits. The Proxier sends the messages of `next_step` to the data plane and enters its
answer with `done`; KernelSync gives the rules to netfilter, and the Proxier enters the success with `applied`.
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
    """The four parts, and what passes between them. Two tasks must not use it at once."""

    def __init__(self, ports: PortSystemCalls, settings: ProxierSettings = DEFAULTS) -> None:
        proxy_ports = Ports(ports.reserver, settings.port_range)
        claims = NodePortClaims(ports, is_proxy_port=proxy_ports.holds)
        self.resolver = Resolver()
        self.availability = Availability(claims, is_proxy_port=proxy_ports.holds)
        self.rules = RuleSetBuilder()
        self.listeners = Listeners(proxy_ports, self.availability, self.rules)
        self._facts = settings.facts
        self._pods_seen = 0
        """The number of changes of local pods that the rules contain."""
        self.use(settings)

    @property
    def settled(self) -> bool:
        """Return whether everything absorbed is in effect, apart from the faults."""
        return not (
            self.resolver.has_stale
            or self.availability.is_undecided
            or not self.listeners.settled
            or not self.rules.is_balanced
            or self.listeners.rules_pending
        )

    @property
    def unavailable(self) -> set[FrontendName | Destination]:
        """Return what failed and is retried: frontends not opened or updated, and ports that other processes have."""
        return {*self.listeners.faults, *self.availability.claims.awaited}

    # From changes to messages.

    def use(self, settings: ProxierSettings) -> None:
        """Use these settings from now on. `next_step` resolves the Services that depend on the difference again."""
        self._facts = settings.facts
        self.resolver.use(settings)
        self.rules.use(settings)
        self.availability.use(settings)
        self.listeners.use(settings)

    def use_ejected(self, ejected: Ejected) -> None:
        """Have the kernel lead no new connections to these endpoints."""
        if ejected is not self.rules.ejected and (moved := ejected.items() ^ self.rules.ejected.items()):
            names = {name for (_, target), _ in moved for name in self.availability.frontends_at(target)}
            self.rules.use_ejected(ejected, sorted(names))

    def absorb(self, changes: Iterable[Change]) -> None:
        """Resolve changed Services."""
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

    # The results of messages.

    def done(self, step: Step, failures: Mapping[FrontendName, str]) -> None:
        """Note that the data plane has carried out a step, except for these frontends."""
        if self.listeners.done(step, failures):
            self.retry()

    def applied(self, generation: int) -> None:
        """Note that rules of this generation are in force."""
        self.listeners.applied(generation)
        self.availability.release(self._takes_local_port)

    def _takes_local_port(self, destination: Destination) -> bool:
        """Return whether a rule takes a port from processes of this host, even if it is no longer wanted."""
        is_own = destination.address in NODE_PORTS.values() or self._facts.is_own(destination.address)
        return is_own and destination in self.rules.claims

    def retry(self) -> None:
        """Try again what failed."""
        self.listeners.retry()
        self.availability.retry()

    def close(self) -> None:
        """Release all ports."""
        self.listeners.close()
        self.availability.claims.close()

    # The methods that only read follow.

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
