"""Rule sets as chains of the legacy tables, and their differences. Pure.

Names and comments are those of kube-proxy's userspace mode, so that each takes over the rules that the other left. At
most one rule in a chain of ours matches a packet (but for one that comes first), so their order does not matter, and a
chain is a set. ``docs/netfilter.md`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from kubeproxy.model import MARK, NODE_PORTS, Address, Destination, Family, Origin, Traffic, family_of
from kubeproxy.netfilter.cidr import disjoint, is_loopback, of_family
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.ruleset import ProxyPort, Reach, RuleSet

NAT, FILTER, MANGLE = "nat", "filter", "mangle"

PORTALS_CONTAINER = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST = "KUBE-PORTALS-HOST"
PORTALS_INTERNAL = "KUBE-PORTALS-INTERNAL"
NODEPORT_CONTAINER = "KUBE-NODEPORT-CONTAINER"
NODEPORT_HOST = "KUBE-NODEPORT-HOST"
NODEPORT_INTERNAL = "KUBE-NODEPORT-INTERNAL"
PORTS_CONTAINER = "KUBE-PORTS-CONTAINER"
PORTS_HOST = "KUBE-PORTS-HOST"
PORTS_INTERNAL = "KUBE-PORTS-INTERNAL"
PROXY_PORTS = "KUBE-PROXY-PORTS"
PROXY_DIRECT = "KUBE-PROXY-DIRECT"
PROXY_CLOSED = "KUBE-PROXY-CLOSED"
PROXY_SOURCES = "KUBE-PROXY-SOURCES"
PROXY_SOCKETS = "KUBE-PROXY-SOCKETS"
PROXY_DIVERT = "KUBE-PROXY-DIVERT"
PROXY_PAUSE = "KUBE-PROXY-PAUSE"
PROXY_PAUSE_PORTS = "KUBE-PROXY-PAUSE-PORTS"

OWN: Mapping[str, frozenset[str]] = {
    NAT: frozenset(
        {
            *(PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL),
            *(NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL),
            *(PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL),
        }
    ),
    FILTER: frozenset(
        {PROXY_PORTS, PROXY_DIRECT, PROXY_CLOSED, PROXY_SOCKETS, PROXY_SOURCES, "KUBE-NODEPORT-NON-LOCAL"}
    ),
    MANGLE: frozenset({PROXY_DIVERT, PROXY_PAUSE, PROXY_PAUSE_PORTS}),
}
"""Our chains in each table, and others of kube-proxy's userspace mode, which it leaves behind on purpose."""

BUILTIN: Mapping[str, tuple[str, ...]] = {
    NAT: ("PREROUTING", "OUTPUT"),
    FILTER: ("INPUT", "FORWARD", "OUTPUT"),
    MANGLE: ("PREROUTING", "OUTPUT"),
}
"""The built-in chains with jumps to ours."""

_PORTALS_COMMENT = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODEPORTS_COMMENT = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_INTERNAL_COMMENT = "handle packets of pods; NOTE: this must be before the rules for all clients"
_SOURCES_COMMENT = "drop packets from sources that are not admitted, hence not redirected"
_DIVERT_COMMENT = "mark answers to connections from addresses of clients"
_PAUSE_COMMENT = "pause clients until the next proxy serves"
_PORTS_COMMENT = "guard proxy ports, refuse clients of services without endpoints"

K = TypeVar("K")
V = TypeVar("V")

Rules = frozenset[Entry] | tuple[Entry, ...]
"""The rules of a chain: without order in our own chains; our jumps in order in the built-in ones."""

Chains = Mapping[str, Rules]
"""Our chains with their rules, and the built-in ones with our jumps."""


class RuleFactory:
    """Makes the long chains. It keeps the last version of each and makes only the rules that differ, so that one change
    among ten thousand Services does not cost ten thousand rules."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Family, str], tuple[object, Mapping[Any, Any], frozenset[Entry]]] = {}

    def make(
        self, family: Family, chain: str, items: Mapping[K, V], rules: Callable[[K, V], Iterable[Entry]], *, to: object
    ) -> frozenset[Entry]:
        """The chain with the rules of each item; `to`: what else the rules depend on. Different items have different
        rules."""
        before_to, before, made = self._kept.get((family, chain), (to, {}, frozenset()))
        if before_to != to:
            before, made = {}, frozenset()
        # (Not by sets of the items: hashing them takes ten times as long.)
        new = [(key, value) for key, value in items.items() if before.get(key) != value]
        gone = [(key, value) for key, value in before.items() if items.get(key) != value]
        if gone or new:
            made = made.difference(*(rules(*item) for item in gone)).union(*(rules(*item) for item in new))
        self._kept[family, chain] = to, items, made
        return made


def chains_of(wanted: RuleSet, family: Family, rule_factory: RuleFactory | None = None) -> dict[str, Chains]:
    """The chains of a rule set in each table of a family. Chains and jumps are there even when empty: with the last
    rule that needs connection tracking, the kernel would end it, and every running connection with it. (Chains for
    node ports and for pods are there when they have rules.)"""
    rule_factory = rule_factory or RuleFactory()
    mangle = divert(family) if wanted.transparent else {}
    return {NAT: _nat(wanted, family, rule_factory), FILTER: _filter(wanted, family, rule_factory), MANGLE: mangle}


_ANY_SOURCE = (None,)


def _nat(wanted: RuleSet, family: Family, rule_factory: RuleFactory) -> Chains:
    bind = wanted.bind.get(family)
    landing = bind or wanted.landing.get(family)
    exact, on_node = _by_kind(wanted.redirects, family, Origin.ANYWHERE)
    own_exact, own_on_node = _by_kind(wanted.redirects, family, Origin.NODE)
    addresses = of_family(wanted.node_addresses, family)
    # Packets from outside to a loopback address are not redirected: the kernel drops them as martians.
    outside = [address for address in addresses if not is_loopback(address)]
    internal = disjoint(wanted.internal_sources, family)
    # Clients that are not admitted are not redirected, and the filter table drops them (the nat table must not).
    admitted = wanted.admitted

    def portals(chain: str, redirects: Mapping[Destination, int], to: Address | None) -> Rules:
        def portal(key: Destination, way: tuple[int, tuple[str | None, ...]]) -> list[Entry]:
            port, sources = way
            return [
                iptables_entry.rule(
                    family,
                    iptables_entry.dnat(to, port) if to else iptables_entry.redirect(family, port),
                    iptables_entry.match_port(key.protocol, key.port),
                    protocol=key.protocol,
                    destination=None if key.address == NODE_PORTS[family] else key.address,
                    source=source,
                )
                for source in sources
            ]

        items = {key: (port, admitted.get(key, _ANY_SOURCE)) for key, port in redirects.items()}
        return rule_factory.make(family, chain, items, portal, to=to)

    def jumps(
        chain: str,
        comment: str,
        *matches: bytes,
        sources: Iterable[str | None] = _ANY_SOURCE,
        interfaces: Iterable[str] = ("",),
    ) -> list[Entry]:
        all_matches = (*matches, iptables_entry.match_comment(comment))
        return [
            iptables_entry.rule(family, iptables_entry.jump(chain), *all_matches, source=source, interface=interface)
            for source in sources
            for interface in interfaces
        ]

    def jumps_of_pods(chain: str, others: str | None) -> list[Entry]:
        """Redirect this node's own clients. Those of other nodes go the way of all clients."""
        uplinks = sorted(wanted.uplinks)
        return [
            *(jumps(others, _INTERNAL_COMMENT, sources=internal, interfaces=uplinks) if others else ()),
            *jumps(chain, _INTERNAL_COMMENT, sources=internal),
        ]

    def on(addresses: Iterable[Address], chain: str) -> Rules:
        return frozenset(
            iptables_entry.rule(family, iptables_entry.jump(chain), destination=address) for address in addresses
        )

    # First of all: a dial of the proxy that came back to it would be dialed again.
    not_ours = iptables_entry.match_unmarked(MARK)
    prerouting, output = jumps(PORTALS_CONTAINER, _PORTALS_COMMENT), jumps(PORTALS_HOST, _PORTALS_COMMENT, not_ours)
    chains = {
        PORTALS_CONTAINER: portals(PORTALS_CONTAINER, exact, landing),
        PORTALS_HOST: portals(PORTALS_HOST, {**exact, **own_exact}, bind),
    }
    if internal and own_exact:
        prerouting = [*jumps_of_pods(PORTALS_INTERNAL, PORTALS_CONTAINER), *prerouting]
        chains[PORTALS_INTERNAL] = portals(PORTALS_INTERNAL, own_exact, landing)
    if internal and own_on_node and outside:
        prerouting += jumps_of_pods(NODEPORT_INTERNAL, NODEPORT_CONTAINER if on_node else None)
        chains[NODEPORT_INTERNAL] = on(outside, PORTS_INTERNAL)
        chains[PORTS_INTERNAL] = portals(PORTS_INTERNAL, own_on_node, landing)
    if on_node and outside:
        prerouting += jumps(NODEPORT_CONTAINER, _NODEPORTS_COMMENT)
        chains[NODEPORT_CONTAINER] = on(outside, PORTS_CONTAINER)
        chains[PORTS_CONTAINER] = portals(PORTS_CONTAINER, on_node, landing)
    if (on_node or own_on_node) and addresses:
        output += jumps(NODEPORT_HOST, _NODEPORTS_COMMENT, not_ours)
        chains[NODEPORT_HOST] = on(addresses, PORTS_HOST)
        chains[PORTS_HOST] = portals(PORTS_HOST, {**on_node, **own_on_node}, bind)
    return {"PREROUTING": tuple(prerouting), "OUTPUT": tuple(output), **chains}


def _by_kind(redirects: Mapping[Traffic, int], family: Family, origin: Origin) -> tuple[dict[Destination, int], ...]:
    """Return the redirects of one family and origin: of single addresses, and of node ports."""
    exact: dict[Destination, int] = {}
    on_node: dict[Destination, int] = {}
    for (key, its_origin), port in redirects.items():
        if its_origin is origin and (":" in key.address) is (family == 6):
            (on_node if key.address == NODE_PORTS[family] else exact)[key] = port
    return exact, on_node


def _filter(wanted: RuleSet, family: Family, rule_factory: RuleFactory) -> Chains:
    def on_port(port: ProxyPort, is_refused: bool) -> list[Entry]:
        target = iptables_entry.reject(family) if is_refused else iptables_entry.jump("DROP")
        return [iptables_entry.rule(family, target, iptables_entry.match_port(*port), protocol=port.protocol)]

    def jump(chain: str, *matches: bytes) -> Entry:
        return iptables_entry.rule(family, iptables_entry.jump(chain), *matches)

    closed = {**dict.fromkeys(wanted.refused, True), **dict.fromkeys(wanted.dropped, False)}
    unguarded = wanted.unguarded
    direct = {
        **dict.fromkeys(wanted.guarded - unguarded, False),
        **{port: closed[port] for port in unguarded if port in closed},
    }
    restricted = [key for key in wanted.allowed_sources if family_of(key.address) is family]
    sources = (
        jump(
            PROXY_SOURCES,
            iptables_entry.match_state(iptables_entry.NEW),
            iptables_entry.match_comment(_SOURCES_COMMENT),
        ),
    )
    first_packets = iptables_entry.match_state(iptables_entry.NEW | iptables_entry.INVALID | iptables_entry.UNTRACKED)
    ports = jump(PROXY_PORTS, first_packets, iptables_entry.match_comment(_PORTS_COMMENT))
    # Packets for another program's socket, or for none, meet the same rules as direct ones.
    sockets = {jump(PROXY_SOCKETS, iptables_entry.match_state(iptables_entry.DNAT))} if wanted.guard_sockets else set()
    chains: dict[str, Rules] = {
        "INPUT": (ports,),
        PROXY_PORTS: frozenset(
            {
                jump(PROXY_CLOSED, iptables_entry.match_state(iptables_entry.DNAT)),
                jump(PROXY_DIRECT, iptables_entry.match_state(iptables_entry.DNAT, invert=True)),
                *sockets,
            }
        ),
        PROXY_DIRECT: rule_factory.make(family, PROXY_DIRECT, direct, on_port, to=None),
        PROXY_CLOSED: rule_factory.make(family, PROXY_CLOSED, closed, on_port, to=None),
    }
    if sockets:
        chains |= guarding_sockets(family)
    if restricted:
        chains |= {"INPUT": (*sources, ports), "FORWARD": sources, "OUTPUT": sources}
        chains[PROXY_SOURCES] = frozenset(
            iptables_entry.rule(
                family,
                iptables_entry.jump("DROP"),
                iptables_entry.match_port(key.protocol, key.port),
                protocol=key.protocol,
                destination=key.address,
            )
            for key in restricted
        )
    return chains


def divert(family: Family) -> Chains:
    """Return the chains of table mangle for transparent rule sets."""
    comment = iptables_entry.match_comment(_DIVERT_COMMENT)
    return {
        "PREROUTING": (iptables_entry.rule(family, iptables_entry.jump(PROXY_DIVERT), comment),),
        PROXY_DIVERT: frozenset(
            {
                # Not for packets to this host: accepted sockets are transparent like their listeners, and packets of
                # their clients are to be routed as usual.
                iptables_entry.rule(
                    family,
                    iptables_entry.mark(MARK),
                    iptables_entry.match_transparent(),
                    iptables_entry.match_elsewhere(),
                )
            }
        ),
    }


def guarding_sockets(family: Family) -> Chains:
    """Return the chain of table filter that checks sockets of redirected packets."""
    return {
        PROXY_SOCKETS: frozenset(
            {own_socket_rule(family), iptables_entry.rule(family, iptables_entry.jump(PROXY_DIRECT))}
        )
    }


def own_socket_rule(family: Family) -> Entry:
    """Return the rule that lets packets for a transparent socket leave that chain."""
    return iptables_entry.rule(family, iptables_entry.jump("RETURN"), iptables_entry.match_transparent(wildcard=True))


def pause(nat: Chains, family: Family, *, until: int) -> Chains:
    """Return the chains of table mangle that drop first packets instead of table nat's redirects.

    From any source and until then (seconds since 1970); afterwards a packet meets the two jumps alone, which do not
    match any more. Nothing without redirects."""

    def drops(*chains: str) -> frozenset[Entry]:
        return frozenset(
            iptables_entry.with_target(family, entry, iptables_entry.jump("DROP"))
            for name in chains
            for entry in nat.get(name, ())
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT")
        )

    exact = drops(PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL)
    on_node = drops(PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL)
    if not exact and not on_node:
        return {}
    to_ports = frozenset(
        iptables_entry.with_target(family, entry, iptables_entry.jump(PROXY_PAUSE_PORTS))
        for name in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL)
        for entry in nat.get(name, ())
        if iptables_entry.target_of(family, entry) in OWN[NAT]
    )
    jump = iptables_entry.rule(
        family,
        iptables_entry.jump(PROXY_PAUSE),
        iptables_entry.match_state(iptables_entry.NEW),
        iptables_entry.match_until(until),
        iptables_entry.match_comment(_PAUSE_COMMENT),
    )
    return {"PREROUTING": (jump,), "OUTPUT": (jump,), PROXY_PAUSE: exact | to_ports, PROXY_PAUSE_PORTS: on_node}


def reach(nat: Chains, ours: RuleSet, family: Family) -> Reach:
    """Return the number of table nat's redirects that belong to a rule set, and of others."""
    wanted = chains_of(ours, family)[NAT]
    mine = others = 0
    for name in (PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL, PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL):
        same = frozenset(wanted.get(name, ()))
        for entry in nat.get(name, ()):
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT"):
                mine, others = (mine + 1, others) if entry in same else (mine, others + 1)
    return Reach(mine, others)


def without_pause(mangle: Chains, family: Family) -> Chains:
    """Return the chains of table mangle without those of a pause."""
    kept = {name: rules for name, rules in mangle.items() if name not in (PROXY_PAUSE, PROXY_PAUSE_PORTS)}
    for name in BUILTIN[MANGLE]:
        kept[name] = tuple(rule for rule in kept.get(name, ()) if iptables_entry.target_of(family, rule) != PROXY_PAUSE)
    return {name: rules for name, rules in kept.items() if rules or name not in BUILTIN[MANGLE]}


def is_needed(wanted: RuleSet, family: Family) -> bool:
    """Whether a family's tables are needed even if they have no rules of ours. Opening them loads them into the kernel,
    so IPv6's are opened only for IPv6 addresses; an IPv4 listener's proxy port cannot be reached by IPv6 anyway."""
    destinations = chain((destination for destination, _ in wanted.redirects), wanted.allowed_sources)
    return family is Family.IPV4 or any(":" in destination.address for destination in destinations)


def union(have: Chains, wanted: Chains) -> Chains:
    """Return the existing and the wanted rules together."""
    return {
        name: _merged(have.get(name, frozenset()), wanted.get(name, frozenset()))
        for name in have.keys() | wanted.keys()
    }


def _merged(have: Rules, wanted: Rules) -> Rules:
    if have is wanted:
        return have
    if isinstance(have, frozenset) and isinstance(wanted, frozenset):
        return have | wanted
    return tuple(dict.fromkeys((*wanted, *have)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of a table, in this order."""

    create: tuple[str, ...]
    flush: tuple[str, ...]
    delete: tuple[tuple[str, Entry], ...]
    add: tuple[tuple[str, Entry], ...]
    """For a built-in chain in the order of its rules."""
    drop: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.create, self.flush, self.add, self.delete, self.drop))


def difference(have: Chains, wanted: Chains, *, table: str) -> Difference:
    """Return the changes that turn one into the other."""
    own = OWN[table]
    drop = [name for name in have if name not in wanted and name in own]
    flush, add, delete = [], [], []
    for name in {**have, **wanted}:
        old, new = have.get(name, ()), wanted.get(name, ())
        if name in drop:
            continue
        if name not in own:
            # In a built-in chain the order counts, and it is a handful of jumps.
            if tuple(old) != tuple(new):
                delete += [(name, entry) for entry in old]
                add += [(name, entry) for entry in new]
            continue
        if old is new:
            continue
        more, gone = frozenset(new) - frozenset(old), frozenset(old) - frozenset(new)
        # Deleting a rule takes a search through its chain, so a chain that loses most rules is filled anew.
        if len(gone) > len(new):
            flush.append(name)
            add += [(name, entry) for entry in new]
        else:
            add += [(name, entry) for entry in more]
            delete += [(name, entry) for entry in gone]
    return Difference(
        create=tuple(name for name in wanted if name not in have and name in own),
        flush=tuple(flush),
        delete=tuple(delete),
        add=tuple(add),
        drop=tuple(drop),
    )


def comes_last(entry: Entry) -> bool:
    """Return whether a jump belongs at the end of a built-in chain; other jumps belong at its start."""
    return entry.endswith(_LAST)


def comes_first(entry: Entry) -> bool:
    """Return whether a rule belongs at the start of its chain."""
    return entry.endswith(iptables_entry.jump("RETURN"))


_LAST = tuple(iptables_entry.jump(chain) for chain in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL))
