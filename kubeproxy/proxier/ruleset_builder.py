"""Builds the RuleSet of the serving frontends and their proxy ports.

The rule set is updated incrementally, so the cost of a change, and of `take_change`, does not depend on the number of
frontends. Only the copy that `ruleset` returns does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    Scope,
    Target,
    Traffic,
    Verdict,
)
from kubeproxy.model.snapshot import DataPath, SlotUse
from kubeproxy.netfilter.ruleset import Masquerade, ProxyPort, RuleChange, RuleSet, Spread
from kubeproxy.proxier.address_claims import AddressClaims, Claimant, Place
from kubeproxy.proxier.data_path_choice import Ejected, Wanted, why_userspace
from kubeproxy.proxier.hairpins import Hairpins
from kubeproxy.proxier.kernel_slots import client_hash, slots_of
from kubeproxy.proxier.node import Preserve
from kubeproxy.proxier.settings import DEFAULTS, ProxierSettings
from kubeproxy.proxier.slot_budget import SlotBudget

NO_REFUSALS: Final[Mapping[Verdict, int]] = MappingProxyType({})
"""The value of `refusals` for a frontend whose own proxy port refuses its clients."""
NO_FALLBACK: Final = "kubeproxy.userspaceFallback is never"


@dataclass(frozen=True, slots=True)
class _Entry:
    """The rules of one frontend."""

    frontend: Frontend
    proxy_port: ProxyPort
    verdict: Verdict | None
    """What happens to clients that the kernel does not send to an endpoint, or None if a worker serves them."""
    own_port: int
    """The listener's proxy port. It equals `proxy_port`, unless that is one of `refusals`."""
    refusals: Mapping[Verdict, int]
    """See `RuleSetBuilder.put`."""
    affinity_timeout_s: int | None = None
    """The affinity timeout of the frontend's spread, or None without affinity or without a spread."""

    def has_rules_of(self, other: _Entry) -> bool:
        """Return whether the rules of the two entries are the same, apart from the spread."""
        mine, its = self.frontend, other.frontend
        return (
            (self.proxy_port, self.verdict, self.affinity_timeout_s)
            == (other.proxy_port, other.verdict, other.affinity_timeout_s)
            and (mine.destinations, mine.ranged, mine.source_ranges)
            == (its.destinations, its.ranged, its.source_ranges)
            and (mine.claims, mine.created) == (its.claims, its.created)
        )


class RuleSetBuilder:
    """Builds the rules of all serving frontends. If several service ports claim a destination, `claims` decides which
    one gets it."""

    def __init__(self) -> None:
        self.generation = 0
        """A number that increases with every change that needs a transaction."""
        self.claims = AddressClaims()
        self.refused: dict[FrontendName, str] = {}
        """The frontends whose endpoints get no clients at all: the kernel path cannot serve them, and no worker does.
        Each has the reason."""
        self._unserved: dict[FrontendName, str] = {}
        """Why no worker serves a frontend (see `put`)."""
        self._settings = DEFAULTS
        self._ejected: Ejected = {}
        self._budget = SlotBudget()
        # These are by frontend.
        self._entries: dict[FrontendName, _Entry] = {}
        self._spread_of: dict[FrontendName, Spread] = {}
        self._external: set[FrontendName] = set()
        self._hairpins = Hairpins()
        # These are by traffic or by destination.
        self._redirects: dict[Traffic, int] = {}
        self._spreads: dict[Traffic, Spread] = {}
        self._unbalanced: dict[Traffic, None] = {}
        """The traffic whose spread has changed since it was last sent to the kernel."""
        self._touched: dict[Destination, None] = {}
        """The destinations whose rules may have changed since they were last sent to the kernel."""
        self._touched_ports: dict[ProxyPort, None] = {}
        """The proxy ports that came or went, or began or ceased to refuse, since then."""
        self._whole = True
        """Whether the kernel needs complete rules, because more than destinations and ports has changed."""
        self._allowed_sources: dict[Destination, frozenset[str]] = {}
        self._masquerades: dict[Destination, Masquerade] = {}
        # These are by proxy port.
        self._proxy_ports: Counter[ProxyPort] = Counter()
        """The number of frontends of each proxy port."""
        self._pods: Mapping[Address, frozenset[int]] = {}
        self._hooks: frozenset[Destination] = frozenset()
        self._moved_hooks: dict[Destination, None] = {}
        """The hooks that were added or removed since they were last sent to the kernel."""
        self._without_endpoints: dict[Verdict, Counter[ProxyPort]] = {verdict: Counter() for verdict in Verdict}
        # Once true, these stay true, because running connections outlive the settings and frontends under which they
        # began.
        self._ever_transparent = False
        self._ever_kernel = False

    def put(
        self, frontend: Frontend, port: int, refusals: Mapping[Verdict, int] = NO_REFUSALS, *, unserved: str = ""
    ) -> None:
        """Add or change a frontend that is served on a proxy port.

        If the frontend shares its port, `refusals` has the ports for refused and for dropped clients. Otherwise clients
        are refused or dropped on its own port. `unserved` is the reason if no worker serves the frontend, and otherwise
        empty."""
        if unserved:
            self._unserved[frontend.name] = unserved
        else:
            self._unserved.pop(frontend.name, None)
        self._put(frontend, port, refusals)
        self._use_free_slots()

    def _put(self, frontend: Frontend, port: int, refusals: Mapping[Verdict, int]) -> None:
        name = frontend.name
        before, spread_before = self._entries.get(name), self._spread_of.get(name)
        self._set_spread(frontend)
        self._set_hairpins(frontend)
        spread, verdict = self._spread_of.get(name), self._verdict(frontend)
        entry = self._entries[name] = _Entry(
            frontend=frontend,
            proxy_port=ProxyPort(frontend.protocol, port if verdict is None else refusals.get(verdict, port)),
            verdict=verdict,
            own_port=port,
            refusals=refusals,
            affinity_timeout_s=spread.affinity_timeout_s if spread else None,
        )
        if before is not None and entry.has_rules_of(before) and (spread is None) is (spread_before is None):
            if spread is not spread_before:
                self._respread(name)
            return
        self.generation += 1
        if before is not None:
            self._forget(name, before, keep=frontend.destinations.keys())
        if name.scope is Scope.EXTERNAL:
            self._external.add(name)
        self._proxy_ports[entry.proxy_port] += 1
        self._touched_ports[entry.proxy_port] = None
        if entry.verdict is not None:
            self._without_endpoints[entry.verdict][entry.proxy_port] += 1
        for destination, origin in sorted(frontend.destinations.items(), key=_anywhere_first):
            self.claims.put(destination, Claimant(name, origin, Place.of(frontend, destination)))
            self._settle(destination)

    def update_endpoints(self, frontend: Frontend) -> None:
        """Update the endpoints of a frontend on the kernel path. All other changes of the frontend need `put`."""
        entry = self._entries.get(frontend.name)
        if entry is not None and frontend.name in self._spread_of:
            now = replace(
                entry.frontend,
                endpoints=frontend.endpoints,
                staying=frontend.staying,
                neighbors=frontend.neighbors,
                balancing=frontend.balancing,
                settled=frontend.settled,
            )
            self._entries[frontend.name] = replace(entry, frontend=now)
            self._set_spread(now)
            self._set_hairpins(now)
            self._respread(frontend.name)
            self._use_free_slots()

    def remove(self, name: FrontendName) -> None:
        """Remove a frontend."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._unserved.pop(name, None)
            self.generation += 1
            self._spread_of.pop(name, None)
            self.refused.pop(name, None)
            self._budget.release(name)
            self._hairpins.put(name, ())
            self._external.discard(name)
            self._forget(name, entry, keep=set())
            self._use_free_slots()

    def _use_free_slots(self) -> None:
        """Put frontends on the kernel path that got no slots before, if there is room for them now."""
        for name in self._budget.admissible():
            if (entry := self._entries.get(name)) is not None:
                self._put(entry.frontend, entry.own_port, entry.refusals)

    def use(self, settings: ProxierSettings) -> None:
        """Apply these settings from now on. `generation` increases if the rules change."""
        before, self._settings = self._settings, settings
        self._budget.limit = settings.data_path.slots
        if settings.data_path.wanted is not Wanted.USERSPACE and not self._ever_kernel:
            self._ever_kernel = True
            self.require_rules()
        was, now = before.facts, settings.facts
        if (settings.data_path, now.forwarding, now.internal_sources) != (
            before.data_path,
            was.forwarding,
            was.internal_sources,
        ):
            self._choose_paths()
        self._set_hooks()
        if _in_rules(settings) != _in_rules(before):
            self.require_rules()

    def use_ejected(self, ejected: Ejected, at: Iterable[FrontendName]) -> None:
        """Set the endpoints that get no new connections from the kernel. `at` has the frontends with an endpoint whose
        ejection has begun or ended.

        If all endpoints of a frontend are ejected, it keeps the silent ones. The reason is that a worker dials from
        this node's address: if a network policy separates a client from all endpoints (which makes them silent), the
        client must not reach a worker. If no endpoint is silent, the frontend takes the userspace path. Without that
        path its clients are rejected, as they would be by the endpoints themselves.
        """
        self._ejected = ejected
        for name in at:
            if (entry := self._entries.get(name)) is not None:
                self._set_spread(entry.frontend)
                self._set_hairpins(entry.frontend)
                self._respread(name)

    def proxy_port_of(self, name: FrontendName, otherwise: int) -> int:
        """Return the port to which rules redirect a frontend's clients, or `otherwise` if the frontend has no rules."""
        entry = self._entries.get(name)
        return otherwise if entry is None else entry.proxy_port.port

    @property
    def ejected(self) -> Ejected:
        """Return the endpoints that get no new connections from the kernel."""
        return self._ejected

    def data_path(self, frontend: Frontend) -> tuple[DataPath, str, tuple[Target, ...]]:
        """Return the data path of a frontend's new connections, the reason if it is not the kernel path, and the
        endpoints of the kernel path."""
        otherwise = DataPath.REFUSED if self._why_unserved(frontend.name) else DataPath.USERSPACE
        reason = why_userspace(frontend, self._settings.data_path, self._settings.facts) or self._budget.why_refused(
            frontend.name
        )
        if reason:
            return otherwise, reason, ()
        spread = self._spread_of.get(frontend.name)
        if spread is None or not spread.targets:
            return otherwise, "all endpoints are ejected" if spread else "there is no rule yet", ()
        return DataPath.KERNEL, "", spread.targets

    @property
    def slots(self) -> SlotUse:
        """Return how many slots of the kernel path are in use, and their limit."""
        return self._budget.use

    def take_unbalanced(self, in_force: RuleSet) -> RuleChange:
        """Return the spreads, hairpins and hooks that changed since the last call, or since the last `ruleset`. It
        returns only spreads of destinations that the rules in force redirect to the same ports. All others wait for
        `take_change`, and the first and the last hook need complete rules."""
        redirected = (it for it in self._unbalanced if self._redirects.get(it, 0) == in_force.redirects.get(it))
        change = self._endpoint_change(redirected, in_force)
        self._note_balanced()
        return change

    def take_change(self, in_force: RuleSet) -> RuleChange | None:
        """Return all changes since the last call, or since the last `ruleset`. They make the rules in force equal to
        the wanted ones. Return None if that takes complete rules."""
        if self._whole or self._transparent() is not in_force.transparent:
            return None
        touched = [
            traffic
            for traffic in (Traffic(destination, origin) for destination in self._touched for origin in Origin)
            if traffic in self._redirects or traffic in in_force.redirects
        ]
        change = replace(
            self._endpoint_change((*self._unbalanced, *touched), in_force),
            redirects={traffic: self._redirects.get(traffic) for traffic in touched},
            allowed_sources=_differing(self._touched, self._allowed_sources, in_force.allowed_sources),
            masquerades=_differing(self._touched, self._masquerades, in_force.masquerades),
            proxy_ports=_moved(self._touched_ports, self._proxy_ports, in_force.proxy_ports),
            refused=_moved(self._touched_ports, self._without_endpoints[Verdict.REFUSE], in_force.refused),
            dropped=_moved(self._touched_ports, self._without_endpoints[Verdict.DROP], in_force.dropped),
        )
        self._note_taken()
        return change

    def _endpoint_change(self, traffic: Iterable[Traffic], in_force: RuleSet) -> RuleChange:
        now, before = self._spreads, in_force.spreads
        return RuleChange(
            spreads={it: now.get(it) for it in traffic if now.get(it) is not before.get(it)},
            hairpins=self._hairpins.moved(in_force.hairpins),
            hooks=_moved(self._moved_hooks if in_force.hooks and self._hooks else (), self._hooks, in_force.hooks),
        )

    @property
    def is_balanced(self) -> bool:
        """Return whether `take_unbalanced` would return nothing."""
        return not (self._unbalanced or self._hairpins.has_moved or self._moved_hooks)

    def _note_balanced(self) -> None:
        self._unbalanced.clear()
        self._hairpins.settle()
        self._moved_hooks.clear()

    def _note_taken(self) -> None:
        self._note_balanced()
        self._touched.clear()
        self._touched_ports.clear()
        self._whole = False

    def require_rules(self) -> None:
        """Have the kernel get the complete rules."""
        self._whole = True
        self.generation += 1

    def ruleset(self) -> RuleSet:
        """Return a copy of the present rules."""
        self._note_taken()
        return RuleSet(
            redirects=self._redirects.copy(),
            internal_sources=self._settings.facts.internal_sources,
            uplinks=self._settings.facts.uplinks,
            node_addresses=self._settings.facts.node_addresses,
            allowed_sources=self._allowed_sources.copy(),
            transparent=self._transparent(),
            guard_sockets=self._settings.guard_sockets,
            proxy_ports=set(self._proxy_ports),
            refused=set(self._without_endpoints[Verdict.REFUSE]),
            dropped=set(self._without_endpoints[Verdict.DROP]),
            landing=self._settings.landing,
            bind=self._settings.bind,
            spreads=self._spreads.copy(),
            masquerades=self._masquerades.copy(),
            # These links do not matter without a kernel path.
            direct_links=self._settings.facts.direct_links if self._ever_kernel else frozenset(),
            hairpins=self._hairpins.addresses,
            rescue=self._settings.rescue_group,
            tcp_timeouts=self._settings.tcp_timeouts,
            hooks=set(self._hooks),
            hook_port=self._settings.drain_hook if self._hooks else 0,
        )

    def use_pods(self, pods: Mapping[Address, frozenset[int]]) -> None:
        """Redirect the preStop hooks of these pods on this node to the socket that answers them. `pods` has the
        addresses, each with the TCP ports of its endpoints."""
        self._pods = pods
        self._set_hooks()

    def _set_hooks(self) -> None:
        """Compute the hooks of the pods. A pod that is itself an endpoint at the hook port gets no hook, because
        connections to that port, such as probes, are meant for the pod."""
        port = self._settings.drain_hook_port if self._settings.drain_hook else 0
        asked = [pod for pod, ports in self._pods.items() if port not in ports] if port else []
        hooks = frozenset(Destination(pod, Protocol.TCP, port) for pod in asked)
        if bool(hooks) is not bool(self._hooks):
            self.require_rules()  # The first hook adds rules, and the last one removes them.
        self._moved_hooks.update(dict.fromkeys(hooks ^ self._hooks))
        self._hooks = hooks

    def _transparent(self) -> bool:
        """Return whether a frontend may dial from clients' addresses now, or was allowed to at any time before. The
        rules for this must be there before the first such dial and stay until the process ends: the data plane gets
        endpoints before the kernel gets rules, and running connections outlive their frontend."""
        if self._settings.facts.preserve is Preserve.NEVER:
            return False
        preserving = self._external if self._settings.facts.preserve is Preserve.EXTERNAL_LOCAL else self._entries
        self._ever_transparent = self._ever_transparent or bool(preserving)
        return self._ever_transparent

    def _choose_paths(self) -> None:
        """Decide the data path of every frontend again."""
        for entry in list(self._entries.values()):
            self._put(entry.frontend, entry.own_port, entry.refusals)
        self._use_free_slots()
        for destination in self.claims:
            self._set_masquerade(destination)

    def _set_spread(self, frontend: Frontend) -> None:
        """Compute the spread of a frontend. If it is equal to the present one, keep the same object."""
        if not self._ever_kernel:
            return
        name = frontend.name
        targets, refusal = self._kernel_targets(frontend)
        if refusal and frontend.settled is not None:
            # Try again without the slow start, which takes up to ten times as many slots. The kernel path is worth more
            # than a slow start.
            frontend = replace(frontend, balancing=frontend.settled, settled=None)
            targets, refusal = self._kernel_targets(frontend)
        if refusal and frontend.endpoints and (unserved := self._why_unserved(name)):
            self.refused[name] = f"{unserved}: {refusal}"
        else:
            self.refused.pop(name, None)
        spread = Spread(
            str(name.service_port),
            targets,
            frontend.endpoints + frontend.staying,
            frontend.affinity_timeout_s,
            name.scope,
            slots_of(frontend, targets),
            client_hash(frontend),
        )
        if self._spread_of.get(name) != spread:
            self._spread_of[name] = spread

    def _kernel_targets(self, frontend: Frontend) -> tuple[tuple[Target, ...], str]:
        """Return the endpoints for a frontend's new connections on the kernel path. If there are none, return an empty
        tuple and the reason."""
        if refusal := why_userspace(frontend, self._settings.data_path, self._settings.facts):
            self._budget.release(frontend.name)
            return (), refusal
        if refusal := self._budget.reserve(frontend):
            return (), refusal
        if not self._ejected:
            return frontend.endpoints, ""
        targets = tuple(it for it in frontend.endpoints if (frontend.protocol, it) not in self._ejected)
        if not targets:
            # If all endpoints are ejected, keep the silent ones, because a network policy may make them silent to one
            # client only.
            targets = tuple(it for it in frontend.endpoints if self._ejected[frontend.protocol, it])
        # If no endpoint is ejected, use the frontend's own tuple to save memory.
        return (frontend.endpoints if len(targets) == len(frontend.endpoints) else targets), ""

    def _verdict(self, frontend: Frontend) -> Verdict | None:
        if not frontend.endpoints:
            return frontend.when_empty
        return Verdict.REFUSE if self._why_unserved(frontend.name) else None

    def _why_unserved(self, name: FrontendName) -> str:
        """Return why no worker serves a frontend, or an empty text if one does."""
        return self._unserved.get(name) or ("" if self._settings.data_path.fallback else NO_FALLBACK)

    def _set_hairpins(self, frontend: Frontend) -> None:
        """Set which endpoints may get their own connections back."""
        spread = self._spread_of.get(frontend.name)
        leads = spread is not None and bool(spread.targets)
        self._hairpins.put(frontend.name, (it.address for it in frontend.neighbors) if leads else ())

    def _respread(self, name: FrontendName) -> None:
        """Update the spread of all destinations of a frontend."""
        entry, spread = self._entries[name], self._spread_of.get(name)
        if spread is None:
            return
        for traffic in map(Traffic._make, entry.frontend.destinations.items()):
            if self.claims.holder(traffic) == name and self._spreads.get(traffic) is not spread:
                self._spreads[traffic] = spread
                self._unbalanced[traffic] = None

    def _set_masquerade(self, destination: Destination) -> None:
        masquerade = self._masquerade(destination)
        if masquerade is self._masquerades.get(destination):
            return
        self.generation += 1
        self._touched[destination] = None
        if masquerade is None:
            del self._masquerades[destination]
        else:
            self._masquerades[destination] = masquerade

    def _masquerade(self, destination: Destination) -> Masquerade | None:
        """Return which clients of a destination are masqueraded, as in kube-proxy, or None if all keep their
        address."""
        if Traffic(destination, Origin.NODE) in self._spreads:
            return Masquerade.NODE
        traffic = Traffic(destination)
        holder = self.claims.holder(traffic)
        if traffic not in self._spreads or holder is None or holder.scope is Scope.EXTERNAL:
            return None
        is_external = destination.address in NODE_PORTS.values() or destination in self._entries[holder].frontend.claims
        if is_external or self._settings.data_path.masquerade_all:
            # The client may have come through another node, and the endpoint's answer would not return by that node.
            return Masquerade.ALWAYS
        is_v6 = ":" in destination.address
        return Masquerade.OUTSIDE if any((":" in it) is is_v6 for it in self._settings.facts.internal_sources) else None

    def _forget(self, name: FrontendName, entry: _Entry, *, keep: Set[Destination]) -> None:
        _count_down(self._proxy_ports, entry.proxy_port)
        self._touched_ports[entry.proxy_port] = None
        if entry.verdict is not None:
            _count_down(self._without_endpoints[entry.verdict], entry.proxy_port)
        for destination in entry.frontend.destinations.keys() - keep:
            self.claims.withdraw(destination, name)
            self._settle(destination)

    def _settle(self, destination: Destination) -> None:
        """Give the traffic to a destination to the frontend that has the destination, for each origin of the
        traffic."""
        self._touched[destination] = None
        ranges: frozenset[str] = frozenset()
        for traffic in (Traffic(destination, origin) for origin in Origin):
            name = self.claims.holder(traffic)
            spread = self._spread_of.get(name) if name is not None else None
            if self._spreads.get(traffic) is not spread:
                self._unbalanced[traffic] = None
            if spread is None:
                self._spreads.pop(traffic, None)
            else:
                self._spreads[traffic] = spread
            if name is None:
                self._redirects.pop(traffic, None)
                continue
            entry = self._entries[name]
            self._redirects[traffic] = entry.proxy_port.port
            if destination in entry.frontend.ranged:
                ranges |= entry.frontend.source_ranges
        if ranges:
            self._allowed_sources[destination] = ranges
        else:
            self._allowed_sources.pop(destination, None)
        self._set_masquerade(destination)


def _differing(
    keys: Iterable[_Key], now: Mapping[_Key, _Value], before: Mapping[_Key, _Value]
) -> dict[_Key, _Value | None]:
    """Return the values that have changed, with None for those that are gone."""
    return {key: now.get(key) for key in keys if now.get(key) != before.get(key)}


def _moved(keys: Iterable[_Key], now: Container[_Key], before: Container[_Key]) -> dict[_Key, bool]:
    """Return which keys came (true) or went (false)."""
    return {key: key in now for key in keys if (key in now) is not (key in before)}


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _count_down(ports: Counter[ProxyPort], port: ProxyPort) -> None:
    ports[port] -= 1
    if not ports[port]:
        del ports[port]


def _anywhere_first(item: tuple[Destination, Origin]) -> tuple[int, Destination]:
    return -item[1], item[0]


def _in_rules(settings: ProxierSettings) -> tuple[object, ...]:
    """Return the settings that are copied into the rules."""
    facts = settings.facts
    return (
        settings.landing,
        settings.bind,
        settings.guard_sockets,
        settings.rescue_group,
        settings.tcp_timeouts,
        settings.drain_hook,
        facts.node_addresses,
        facts.internal_sources,
        facts.uplinks,
        facts.direct_links,
        facts.preserve,
    )
