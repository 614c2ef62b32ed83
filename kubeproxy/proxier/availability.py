"""Decides which of the resolved frontends are served. It leaves out destinations whose ports belong to other processes
of this host, and endpoints that lead back to this proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace

from kubeproxy.model import Claim, Destination, Frontend, FrontendName, Protocol, ServiceName, Target
from kubeproxy.proxier.loops import Loops
from kubeproxy.proxier.port_claims import NodePortClaims
from kubeproxy.proxier.resolver import Resolution
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings


class Availability:
    """The wanted frontends: the resolved ones without what is not available."""

    def __init__(self, claims: NodePortClaims, *, is_proxy_port: Callable[[Protocol, int], bool]) -> None:
        self.claims = claims
        self.wanted: dict[FrontendName, Frontend] = {}
        self.changed: dict[FrontendName, None] = {}
        """The frontends whose value in `wanted` has changed or gone. The caller removes those that it has processed."""
        self.left_out: dict[FrontendName, dict[Target, str]] = {}
        """The endpoints that lead back to this proxy, each with the destination that it equals."""
        self._loops = Loops(is_proxy_port=is_proxy_port)
        self._resolved: dict[FrontendName, Frontend] = {}
        """The frontends as resolved. Most are the same objects as in `wanted`."""
        self._frontends_of: dict[ServiceName, tuple[FrontendName, ...]] = {}
        self._settings = DEFAULTS

    def use(self, settings: ProxierSettings) -> None:
        """Use these settings from now on."""
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
        """Return whether `leave_out` has frontends to decide about again, because an endpoint of theirs may have begun
        or ceased to lead back to this proxy."""
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
        """Remove a frontend, and return the frontends to which its ports may be available now."""
        resolved, wanted = self._resolved.pop(name), self.wanted.pop(name)
        self.left_out.pop(name, None)
        self._loops.endpoints_changed(name, _targets(resolved), ())
        self._loops.destinations_changed(_allocated(wanted), frozenset())
        self.changed[name] = None
        return self.claims.claim(name, frozenset())

    # These changes may make other destinations available.

    def reserve_for_health(self, health: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Withhold the health check node ports of these Services from all other Services."""
        self._decide_for(self.claims.reserve_for_health({port: service for service, (port, _) in health.items()}))

    def retry(self) -> None:
        """Try to bind the ports again that were not available."""
        self._decide_for(self.claims.retry())

    def release(self, is_in_rules: Callable[[Destination], bool]) -> None:
        """Release the ports that nothing claims any more, unless a rule in force still takes them."""
        self._decide_for(self.claims.release(is_in_rules))

    def proxy_port_changed(self, protocol: Protocol, port: int) -> None:
        """Note that a proxy port was allocated or released, so that endpoints at that port begin or cease to lead
        back."""
        self._loops.proxy_port_changed(protocol, port)

    # The decisions follow.

    def leave_out(self) -> None:
        """Decide again about frontends with endpoints that have begun or ceased to lead back to this proxy."""
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
        """Set the wanted value of a frontend."""
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
    """Return the endpoints whose failures concern a frontend: flows lead to them, whether or not new ones do."""
    return frontend.endpoints + frontend.staying


def _allocated(frontend: Frontend) -> Set[Destination]:
    """Return the destinations that the cluster allocated: cluster IPs and node ports. External addresses do not count,
    because one may name another tenant's pod, and that endpoint must stay. A dial to such an address is marked, so this
    node does not redirect it, and the hop limit ends a loop over several nodes."""
    if not frontend.claims:
        return frontend.destinations.keys()
    return {d for d in frontend.destinations if frontend.claims.get(d, Claim.ALLOCATED) is Claim.ALLOCATED}
