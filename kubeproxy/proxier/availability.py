"""Decides which of the resolved frontends can be served. It removes destinations whose ports other processes of this
host use, and endpoints that are addresses of this proxy itself (loops)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace

from kubeproxy.model import Claim, Destination, Frontend, FrontendName, Protocol, ServiceName, Target
from kubeproxy.proxier.loops import Loops
from kubeproxy.proxier.port_claims import NodePortClaims
from kubeproxy.proxier.resolver import Resolution
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings


class Availability:
    """Computes the wanted frontends: the resolved ones, without what this host cannot serve."""

    def __init__(self, claims: NodePortClaims, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self.claims = claims
        self.wanted: dict[FrontendName, Frontend] = {}
        self.changed: dict[FrontendName, None] = {}
        """The frontends whose value in `wanted` has changed or was removed. The caller removes those that it has
        processed."""
        self.left_out: dict[FrontendName, dict[Target, str]] = {}
        """The endpoints that would lead back to this proxy, by frontend. For each, the destination to which it is
        equal."""
        self._loops = Loops(is_proxy_port=is_proxy_port)
        self._resolved: dict[FrontendName, Frontend] = {}
        """The frontends as resolved. Most of them are also in `wanted`, as the same objects."""
        self._frontends_of: dict[ServiceName, tuple[FrontendName, ...]] = {}
        self._settings = DEFAULTS

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on."""
        before, self._settings = self._settings, settings
        self._loops.use_facts(settings.facts)
        if settings.restrictions is not before.restrictions:
            self._decide_for(self.claims.use(settings.restrictions))

    def frontends_of(self, service: ServiceName) -> tuple[FrontendName, ...]:
        """Return the frontends of a Service."""
        return self._frontends_of.get(service, ())

    def frontends_at(self, target: Target) -> Iterable[FrontendName]:
        """Return the frontends with this endpoint."""
        return self._loops.frontends_at(target)

    @property
    def is_undecided(self) -> bool:
        """Return whether `leave_out` has work: for some frontends, an endpoint may have begun or ceased to lead back to
        this proxy."""
        return bool(self._loops.affected)

    def put(self, resolution: Resolution) -> None:
        """Replace the frontends of a Service."""
        names = tuple(frontend.name for frontend in resolution.frontends)
        affected: set[FrontendName] = set()
        for name in self.frontends_of(resolution.service):
            if name not in names:
                affected |= self._remove(name)
        for frontend in resolution.frontends:
            before = self._resolved.get(frontend.name)
            self._loops.endpoints_changed(frontend.name, _targets(before) if before else (), _targets(frontend))
            self._resolved[frontend.name] = frontend
            claimed = frozenset(d for d in frontend.destinations if d.address in resolution.host_addresses)
            external = {d for d in claimed if frontend.claims.get(d) is Claim.EXTERNAL}
            affected |= self.claims.claim(frontend.name, claimed, external=external)
        if names:
            self._frontends_of[resolution.service] = names
        else:
            self._frontends_of.pop(resolution.service, None)
        for name in names:
            self._decide(name)
        self._decide_for(affected.difference(names))

    def _remove(self, name: FrontendName) -> set[FrontendName]:
        """Remove a frontend. Return the frontends for which its ports may have become available."""
        resolved, wanted = self._resolved.pop(name), self.wanted.pop(name)
        self.left_out.pop(name, None)
        self._loops.endpoints_changed(name, _targets(resolved), ())
        self._loops.destinations_changed(_allocated(wanted), frozenset())
        self.changed[name] = None
        return self.claims.claim(name, frozenset())

    # Changes that may make other destinations available.

    def reserve_for_health(self, health: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Reserve the health check node ports of these Services, so that no other Service gets them."""
        self._decide_for(self.claims.reserve_for_health({port: service for service, (port, _) in health.items()}))

    def retry(self) -> None:
        """Try again to bind the ports that were not available."""
        self._decide_for(self.claims.retry())

    def release(self, is_in_rules: Callable[[Destination], bool]) -> None:
        """Release the ports that no frontend claims any more, unless the rules in force still redirect them."""
        self._decide_for(self.claims.release(is_in_rules))

    def proxy_port_changed(self, protocol: Protocol, port: int) -> None:
        """Record that a proxy port was allocated or released, so that endpoints at this port begin or cease to lead
        back to this proxy."""
        self._loops.proxy_port_changed(protocol, port)

    # Decisions.

    def leave_out(self) -> None:
        """Decide again about the frontends with endpoints that have begun or ceased to lead back to this proxy."""
        affected = self._loops.affected
        while affected:
            name = next(iter(affected))
            del affected[name]
            if name in self.wanted:
                self._decide(name)

    def _decide_for(self, names: Iterable[FrontendName]) -> None:
        for name in sorted(name for name in names if name in self._resolved):
            self._decide(name)
        self.leave_out()

    def _decide(self, name: FrontendName) -> None:
        """Compute the wanted value of a frontend."""
        frontend, unavailable = self._resolved[name], self.claims.unavailable(name)
        if unavailable:
            frontend = replace(
                frontend,
                destinations={d: origin for d, origin in frontend.destinations.items() if d not in unavailable},
                ranged=frontend.ranged - unavailable,
            )
        before = self.wanted.get(name)
        self._loops.destinations_changed(_allocated(before) if before else set(), _allocated(frontend))
        if looping := self._loops.leading_back(frontend):
            self.left_out[name] = looping
            frontend = frontend.keeping(set(frontend.endpoints).difference(looping))
        else:
            self.left_out.pop(name, None)
        if before != frontend:
            self.wanted[name] = frontend
            self.changed[name] = None


def _targets(frontend: Frontend) -> tuple[Target, ...]:
    """Return the endpoints that matter to a frontend: those for new flows, and those that keep their existing flows."""
    return frontend.endpoints + frontend.staying


def _allocated(frontend: Frontend) -> Set[Destination]:
    """Return the destinations that the cluster allocated: cluster IPs and node ports. Only they count as loops. An
    external address may be that of another tenant's pod, and that endpoint must stay. A dial to an external address is
    marked, so this node does not redirect it, and the hop limit ends a loop over several nodes."""
    if not frontend.claims:
        return frontend.destinations.keys()
    return {d for d in frontend.destinations if frontend.claims.get(d, Claim.ALLOCATED) is Claim.ALLOCATED}
