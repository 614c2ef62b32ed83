"""Builds the RuleSet of the serving frontends and their proxy ports.

It is updated with each change, so that a change costs the same among ten thousand frontends as among ten; only the copy
that `ruleset` returns grows with them, at a few nanoseconds each."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.model import Address, Claim, Destination, Family, Frontend, FrontendName, Scope, ServicePortName, Verdict
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from kubeproxy.proxier.node import UNKNOWN_NODE, NodeFacts, Preserve


class Contest(NamedTuple):
    """A destination that several service ports claim."""

    destination: Destination
    holder: FrontendName
    claim: Claim
    """The kind of the holder's claim."""
    others: Mapping[FrontendName, Claim]
    """One frontend of each other service port, and the kind of its claim."""


class _Place(NamedTuple):
    """The rank of a claim among those on the same destination; the least one wins.

    Services without a creation time are those of manifests, which the operator of the node writes: they go before all
    that have one, and among themselves the one that was known first stays first.
    """

    claim: Claim
    created: int
    service: tuple[str, str]
    """Its namespace and name; empty without a creation time."""


class _Claimant(NamedTuple):
    """A frontend's claim on a destination. `own`: for packets of this node and of pods alone."""

    name: FrontendName
    own: bool
    place: _Place


@dataclass(frozen=True, slots=True)
class _Entry:
    """The part of the rules that comes from one frontend."""

    destinations: frozenset[Destination]
    own_destinations: frozenset[Destination]
    ranged: frozenset[Destination]
    source_ranges: frozenset[str]
    claims: Mapping[Destination, Claim]
    created: int
    proxy_port: ProxyPort
    verdict: Verdict | None
    """What happens to its clients if it has no endpoint; None: it has."""


@dataclass(slots=True)
class Rules:
    """The rules of all serving frontends.

    A destination that several service ports claim goes to the one with the least `_Place`, in whichever scope, and from
    it to the next: so at a restart it is the same one as before. `generation` grows with every change that the kernel
    has to learn of.
    """

    landing: Mapping[Family, Address] = field(default_factory=dict)
    bind: Mapping[Family, Address] = field(default_factory=dict)
    facts: NodeFacts = UNKNOWN_NODE
    guard_sockets: bool = False
    generation: int = 0
    _entries: dict[FrontendName, _Entry] = field(default_factory=dict)
    _external: set[FrontendName] = field(default_factory=set)
    _ever_transparent: bool = False
    _claims: dict[Destination, tuple[_Claimant, ...]] = field(default_factory=dict)
    _contested: dict[Destination, None] = field(default_factory=dict)
    _redirects: dict[Destination, int] = field(default_factory=dict)
    _own_redirects: dict[Destination, int] = field(default_factory=dict)
    _allowed_sources: dict[Destination, frozenset[str]] = field(default_factory=dict)
    _proxy_ports: set[ProxyPort] = field(default_factory=set)
    _without_endpoints: dict[Verdict, set[ProxyPort]] = field(default_factory=lambda: {v: set() for v in Verdict})

    def put(self, frontend: Frontend, port: int) -> None:
        """Add or change a frontend that serves on a proxy port."""
        name = frontend.name
        entry = _Entry(
            destinations=frontend.destinations,
            own_destinations=frontend.own_destinations,
            ranged=frontend.ranged,
            source_ranges=frontend.source_ranges,
            claims=frontend.claims,
            created=frontend.created,
            proxy_port=ProxyPort(frontend.protocol, port),
            verdict=None if frontend.endpoints else frontend.when_empty,
        )
        before = self._entries.get(name)
        if entry == before:
            return
        self.generation += 1
        asked = {d: _Claimant(name, own=False, place=_place(frontend, d)) for d in sorted(entry.destinations)}
        asked.update((d, _Claimant(name, own=True, place=_place(frontend, d))) for d in sorted(entry.own_destinations))
        if before is not None:
            self._forget(name, before, keep=asked.keys())
        self._entries[name] = entry
        if name.scope is Scope.EXTERNAL:
            self._external.add(name)
        self._proxy_ports.add(entry.proxy_port)
        if entry.verdict is not None:
            self._without_endpoints[entry.verdict].add(entry.proxy_port)
        for destination, claim in asked.items():
            claims = self._claims.get(destination, ())
            if any(known.name == name for known in claims):
                claims = tuple(claim if known.name == name else known for known in claims)
            else:
                claims = (*claims, claim)
            self._settle(destination, claims)

    def remove(self, name: FrontendName) -> None:
        """Remove a frontend."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.generation += 1
            self._external.discard(name)
            self._forget(name, entry, keep=set())

    def use_addresses(self, landing: Mapping[Family, Address], bind: Mapping[Family, Address]) -> None:
        """Set the addresses to which the rules redirect; see `RuleSet`."""
        if (landing, bind) != (self.landing, self.bind):
            self.landing, self.bind = dict(landing), dict(bind)
            self.generation += 1

    def use_facts(self, facts: NodeFacts) -> None:
        """Set the addresses that take node ports and the CIDRs of pods."""
        before, self.facts = self.facts, facts
        if (facts.node_addresses, facts.internal_sources, facts.preserve) != (
            before.node_addresses,
            before.internal_sources,
            before.preserve,
        ):
            self.generation += 1

    def has_claim(self, destination: Destination) -> bool:
        """Whether a frontend claims a destination."""
        return destination in self._claims

    def contests(self) -> list[Contest]:
        """The destinations that several service ports claim."""
        found = []
        for destination in self._contested:
            first: dict[ServicePortName, _Claimant] = {}
            for claimant in self._claims[destination]:
                first.setdefault(claimant.name.service_port, claimant)
            holder, *others = first.values()
            found.append(
                Contest(destination, holder.name, holder.place.claim, {it.name: it.place.claim for it in others})
            )
        return found

    def ruleset(self) -> RuleSet:
        """A copy of the present rules."""
        return RuleSet(
            redirects=self._redirects.copy(),
            own_redirects=self._own_redirects.copy(),
            internal_sources=self.facts.internal_sources,
            node_addresses=self.facts.node_addresses,
            allowed_sources=self._allowed_sources.copy(),
            transparent=self._transparent(),
            guard_sockets=self.guard_sockets,
            proxy_ports=frozenset(self._proxy_ports),
            refused=frozenset(self._without_endpoints[Verdict.REFUSE]),
            dropped=frozenset(self._without_endpoints[Verdict.DROP]),
            landing=self.landing,
            bind=self.bind,
        )

    def _transparent(self) -> bool:
        """Whether a frontend may dial from clients' addresses, or ever could. Not whether one does now: the data plane
        gets endpoints before the kernel gets rules, and answers must find their way back by then; and running
        connections outlive their frontend, and need the way back to their end."""
        if self.facts.preserve is Preserve.NEVER:
            return False
        preserving = self._external if self.facts.preserve is Preserve.EXTERNAL_LOCAL else self._entries
        self._ever_transparent = self._ever_transparent or bool(preserving)
        return self._ever_transparent

    def _forget(self, name: FrontendName, entry: _Entry, *, keep: Set[Destination]) -> None:
        self._proxy_ports.discard(entry.proxy_port)
        if entry.verdict is not None:
            self._without_endpoints[entry.verdict].discard(entry.proxy_port)
        for destination in (entry.destinations | entry.own_destinations) - keep:
            self._settle(destination, tuple(claim for claim in self._claims[destination] if claim.name != name))

    def _settle(self, destination: Destination, claims: tuple[_Claimant, ...]) -> None:
        """Assign a destination to the service port of the least claim.

        The first frontend of it for all packets gets all, the first for this node's own gets those."""
        claims = tuple(sorted(claims, key=_place_of))
        if claims:
            self._claims[destination] = claims
        else:
            del self._claims[destination]
        holders = [claim for claim in claims if claim.name.service_port == claims[0].name.service_port]
        ranges: frozenset[str] = frozenset()
        for table, own in ((self._redirects, False), (self._own_redirects, True)):
            entry = next((self._entries[claim.name] for claim in holders if claim.own is own), None)
            if entry is None:
                table.pop(destination, None)
                continue
            table[destination] = entry.proxy_port.port
            if destination in entry.ranged:
                ranges |= entry.source_ranges
        if ranges:
            self._allowed_sources[destination] = ranges
        else:
            self._allowed_sources.pop(destination, None)
        if len(holders) < len(claims):
            self._contested[destination] = None
        else:
            self._contested.pop(destination, None)


def _place(frontend: Frontend, destination: Destination) -> _Place:
    service = frontend.name.service_port
    return _Place(
        frontend.claims.get(destination, Claim.ALLOCATED),
        frontend.created,
        (service.namespace, service.name) if frontend.created else ("", ""),
    )


def _place_of(claimant: _Claimant) -> _Place:
    return claimant.place
