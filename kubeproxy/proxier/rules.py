"""Serving frontends and their proxy ports -> the RuleSet. Kept as we go, so that one change costs the same among ten
thousand frontends as among ten; only the copy that is handed out grows with them, at a few nanoseconds each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.model import Address, Destination, Family, Frontend, FrontendName, Verdict
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Contest(NamedTuple):
    """A destination that several frontends claim."""

    destination: Destination
    holder: FrontendName
    others: tuple[FrontendName, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the rules say about one frontend."""

    destinations: frozenset[Destination]
    proxy_port: ProxyPort
    verdict: Verdict | None
    """What becomes of its clients, if there is nobody to serve them."""


@dataclass(slots=True)
class Rules:
    """The rules in the making.

    A destination that several frontends claim goes to the one that claimed it first, and from it to the next.
    `generation` grows with every change that the kernel has to learn of.
    """

    landing: Mapping[Family, Address] = field(default_factory=dict)
    bind: Mapping[Family, Address] = field(default_factory=dict)
    generation: int = 0
    _entries: dict[FrontendName, _Entry] = field(default_factory=dict)
    _claims: dict[Destination, tuple[FrontendName, ...]] = field(default_factory=dict)
    _contested: dict[Destination, None] = field(default_factory=dict)
    _redirects: dict[Destination, int] = field(default_factory=dict)
    _proxy_ports: set[ProxyPort] = field(default_factory=set)
    _without_endpoints: dict[Verdict, set[ProxyPort]] = field(default_factory=lambda: {v: set() for v in Verdict})

    def put(self, frontend: Frontend, port: int) -> None:
        """A frontend serves on a proxy port."""
        verdict = None if frontend.endpoints else frontend.when_empty
        entry = _Entry(frontend.destinations, ProxyPort(frontend.protocol, port), verdict)
        before = self._entries.get(frontend.name)
        if entry == before:
            return
        self.generation += 1
        if before is not None:
            self._forget(frontend.name, before, keep=entry.destinations)
        self._entries[frontend.name] = entry
        self._proxy_ports.add(entry.proxy_port)
        if verdict is not None:
            self._without_endpoints[verdict].add(entry.proxy_port)
        for destination in sorted(entry.destinations):
            claims = self._claims.get(destination, ())
            if frontend.name not in claims:
                claims = (*claims, frontend.name)
            self._settle(destination, claims)

    def remove(self, name: FrontendName) -> None:
        """A frontend serves no more."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.generation += 1
            self._forget(name, entry, keep=frozenset())

    def use_addresses(self, landing: Mapping[Family, Address], bind: Mapping[Family, Address]) -> None:
        """Where the rules lead to from now on; see `RuleSet`."""
        if (landing, bind) != (self.landing, self.bind):
            self.landing, self.bind = dict(landing), dict(bind)
            self.generation += 1

    def contests(self) -> list[Contest]:
        """Destinations that several frontends claim."""
        return [Contest(d, self._claims[d][0], self._claims[d][1:]) for d in self._contested]

    def ruleset(self) -> RuleSet:
        """The rules as of now, as a value of their own."""
        return RuleSet(
            redirects=self._redirects.copy(),
            proxy_ports=frozenset(self._proxy_ports),
            refused=frozenset(self._without_endpoints[Verdict.REFUSE]),
            dropped=frozenset(self._without_endpoints[Verdict.DROP]),
            landing=self.landing,
            bind=self.bind,
        )

    def _forget(self, name: FrontendName, entry: _Entry, *, keep: frozenset[Destination]) -> None:
        self._proxy_ports.discard(entry.proxy_port)
        if entry.verdict is not None:
            self._without_endpoints[entry.verdict].discard(entry.proxy_port)
        for destination in entry.destinations - keep:
            self._settle(destination, tuple(claim for claim in self._claims[destination] if claim != name))

    def _settle(self, destination: Destination, claims: tuple[FrontendName, ...]) -> None:
        if not claims:
            del self._claims[destination], self._redirects[destination]
            self._contested.pop(destination, None)
            return
        self._claims[destination] = claims
        self._redirects[destination] = self._entries[claims[0]].proxy_port.port
        if len(claims) > 1:
            self._contested[destination] = None
        else:
            self._contested.pop(destination, None)
