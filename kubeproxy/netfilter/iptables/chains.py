"""A rule set as chains of the legacy tables, and the difference between two of them. Pure.

Names and comments are those of kube-proxy's userspace mode, so that one takes over what the other left. The rules in
a chain of ours exclude one another (but for one that comes first), so their order does not matter, and a chain is a
set. ``docs/netfilter.md`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from kubeproxy.model import MARK, NODE_PORTS, Address, Destination, Family, family_of
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
PROXY_GAP = "KUBE-PROXY-GAP"
PROXY_GAP_PORTS = "KUBE-PROXY-GAP-PORTS"

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
    MANGLE: frozenset({PROXY_DIVERT, PROXY_GAP, PROXY_GAP_PORTS}),
}
"""Our chains in each table, those that kube-proxy's userspace mode had besides included: it left them on purpose."""

BUILTIN: Mapping[str, tuple[str, ...]] = {
    NAT: ("PREROUTING", "OUTPUT"),
    FILTER: ("INPUT", "FORWARD", "OUTPUT"),
    MANGLE: ("PREROUTING", "OUTPUT"),
}
"""Where those are jumped to from."""

_PORTALS_COMMENT = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODEPORTS_COMMENT = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_INTERNAL_COMMENT = "handle packets of pods; NOTE: this must be before the rule for everybody"
_SOURCES_COMMENT = "drop what is not redirected because its source is not admitted"
_DIVERT_COMMENT = "mark answers to connections from addresses of clients"
_GAP_COMMENT = "let clients wait for the next proxy"
_PORTS_COMMENT = "guard proxy ports, refuse clients of services without endpoints"

K = TypeVar("K")
V = TypeVar("V")

Rules = frozenset[Entry] | tuple[Entry, ...]
"""The rules of a chain: without order in our own chains, in order in the built-in ones, of which it is our jumps."""

Chains = Mapping[str, Rules]
"""Our chains with their rules, and the built-in ones with our jumps in them."""


class RuleFactory:
    """Where the long chains are made. It keeps the last of each, and makes of the next one only what is different, so
    that one change among ten thousand services does not cost ten thousand rules."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Family, str], tuple[object, Mapping[Any, Any], frozenset[Entry]]] = {}

    def make(
        self, family: Family, chain: str, items: Mapping[K, V], rules: Callable[[K, V], Iterable[Entry]], *, to: object
    ) -> frozenset[Entry]:
        """The chain that has these rules for each of the items; `to` is what the rules depend on besides. Different
        items have different rules."""
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


def chains_of(wanted: RuleSet, family: Family, workshop: RuleFactory | None = None) -> dict[str, Chains]:
    """What a rule set comes to in each table of a family. The chains and jumps are there also when they have nothing
    to do: with the last rule that needs connection tracking, the kernel would end it, and every running connection
    with it. (Chains for node ports and for the cluster's own way are there when they have something to do.)"""
    workshop = workshop or RuleFactory()
    mangle = divert(family) if wanted.transparent else {}
    return {NAT: _nat(wanted, family, workshop), FILTER: _filter(wanted, family, workshop), MANGLE: mangle}


_ANYBODY = (None,)


def _nat(wanted: RuleSet, family: Family, workshop: RuleFactory) -> Chains:
    bind = wanted.bind.get(family)
    landing = bind or wanted.landing.get(family)
    exact, on_node = _by_kind(wanted.redirects, family)
    own_exact, own_on_node = _by_kind(wanted.own_redirects, family)
    addresses = of_family(wanted.node_addresses, family)
    # Redirected, packets from outside to a loopback address would be like any other; left alone, the kernel drops
    # them as martians.
    outside = [address for address in addresses if not is_loopback(address)]
    internal = disjoint(wanted.internal_sources, family)
    # Who is not admitted is not redirected, and is dropped by the filter table (the nat table must not drop).
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

        items = {key: (port, admitted.get(key, _ANYBODY)) for key, port in redirects.items()}
        return workshop.make(family, chain, items, portal, to=to)

    def jumps(chain: str, comment: str, *matches: bytes, sources: Iterable[str | None] = _ANYBODY) -> list[Entry]:
        all_matches = (*matches, iptables_entry.match_comment(comment))
        return [
            iptables_entry.rule(family, iptables_entry.jump(chain), *all_matches, source=source) for source in sources
        ]

    def on(addresses: Iterable[Address], chain: str) -> Rules:
        return frozenset(
            iptables_entry.rule(family, iptables_entry.jump(chain), destination=address) for address in addresses
        )

    # Whatever the chains say: a dial of the proxy that came back to it would be dialed for again.
    not_ours = iptables_entry.match_unmarked(MARK)
    prerouting, output = jumps(PORTALS_CONTAINER, _PORTALS_COMMENT), jumps(PORTALS_HOST, _PORTALS_COMMENT, not_ours)
    chains = {
        PORTALS_CONTAINER: portals(PORTALS_CONTAINER, exact, landing),
        PORTALS_HOST: portals(PORTALS_HOST, {**exact, **own_exact}, bind),
    }
    if internal and own_exact:
        prerouting = [*jumps(PORTALS_INTERNAL, _INTERNAL_COMMENT, sources=internal), *prerouting]
        chains[PORTALS_INTERNAL] = portals(PORTALS_INTERNAL, own_exact, landing)
    if internal and own_on_node and outside:
        prerouting += jumps(NODEPORT_INTERNAL, _INTERNAL_COMMENT, sources=internal)
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


def _by_kind(redirects: Mapping[Destination, int], family: Family) -> tuple[dict[Destination, int], ...]:
    """Those of one family: to addresses of their own, and to node ports."""
    exact: dict[Destination, int] = {}
    on_node: dict[Destination, int] = {}
    for key, port in redirects.items():
        if (":" in key.address) is (family == 6):
            (on_node if key.address == NODE_PORTS[family] else exact)[key] = port
    return exact, on_node


def _filter(wanted: RuleSet, family: Family, workshop: RuleFactory) -> Chains:
    def on_port(port: ProxyPort, is_refused: bool) -> list[Entry]:
        target = iptables_entry.reject(family, port.protocol) if is_refused else iptables_entry.jump("DROP")
        return [iptables_entry.rule(family, target, iptables_entry.match_port(*port), protocol=port.protocol)]

    def jump(chain: str, *matches: bytes) -> Entry:
        return iptables_entry.rule(family, iptables_entry.jump(chain), *matches)

    closed = {**dict.fromkeys(wanted.refused, True), **dict.fromkeys(wanted.dropped, False)}
    undisguised = wanted.undisguised
    direct = {
        **dict.fromkeys(wanted.guarded - undisguised, False),
        **{port: closed[port] for port in undisguised if port in closed},
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
    # Not ours is whose socket is somebody else's, and which nobody listens for: those meet the same as direct ones.
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
        PROXY_DIRECT: workshop.make(family, PROXY_DIRECT, direct, on_port, to=None),
        PROXY_CLOSED: workshop.make(family, PROXY_CLOSED, closed, on_port, to=None),
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
    """What table mangle has for transparent rule sets."""
    comment = iptables_entry.match_comment(_DIVERT_COMMENT)
    return {
        "PREROUTING": (iptables_entry.rule(family, iptables_entry.jump(PROXY_DIVERT), comment),),
        PROXY_DIVERT: frozenset(
            {
                # What is addressed to this host needs no help: our accepted sockets are transparent, as their listeners
                # are, and their clients' packets keep the way that they have always had.
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
    """The chain of table filter that looks whose socket a redirected packet would get."""
    return {PROXY_SOCKETS: frozenset({ours(family), iptables_entry.rule(family, iptables_entry.jump(PROXY_DIRECT))})}


def ours(family: Family) -> Entry:
    """The rule by which a packet that is for a transparent socket leaves that chain."""
    return iptables_entry.rule(family, iptables_entry.jump("RETURN"), iptables_entry.match_transparent(wildcard=True))


def gap(nat: Chains, family: Family, *, until: int) -> Chains:
    """What table mangle has to have so that first packets to the destinations which table nat redirects are dropped
    until then (seconds since 1970), from wherever they come; nothing if it redirects none. Afterwards a packet meets no
    more of it than the two jumps, which lead nowhere any more."""

    def drops(*chains: str) -> frozenset[Entry]:
        return frozenset(
            iptables_entry.turned(family, entry, iptables_entry.jump("DROP"))
            for name in chains
            for entry in nat.get(name, ())
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT")
        )

    exact = drops(PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL)
    on_node = drops(PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL)
    if not exact and not on_node:
        return {}
    to_ports = frozenset(
        iptables_entry.turned(family, entry, iptables_entry.jump(PROXY_GAP_PORTS))
        for name in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL)
        for entry in nat.get(name, ())
        if iptables_entry.target_of(family, entry) in OWN[NAT]
    )
    jump = iptables_entry.rule(
        family,
        iptables_entry.jump(PROXY_GAP),
        iptables_entry.match_state(iptables_entry.NEW),
        iptables_entry.match_until(until),
        iptables_entry.match_comment(_GAP_COMMENT),
    )
    return {"PREROUTING": (jump,), "OUTPUT": (jump,), PROXY_GAP: exact | to_ports, PROXY_GAP_PORTS: on_node}


def reach(nat: Chains, ours: RuleSet, family: Family) -> Reach:
    """How many of the redirects in table nat are those of a rule set, and how many lead elsewhere."""
    wanted = chains_of(ours, family)[NAT]
    mine = others = 0
    for name in (PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL, PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL):
        same = frozenset(wanted.get(name, ()))
        for entry in nat.get(name, ()):
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT"):
                mine, others = (mine + 1, others) if entry in same else (mine, others + 1)
    return Reach(mine, others)


def without_gap(mangle: Chains, family: Family) -> Chains:
    """What table mangle has besides."""
    kept = {name: rules for name, rules in mangle.items() if name not in (PROXY_GAP, PROXY_GAP_PORTS)}
    for name in BUILTIN[MANGLE]:
        kept[name] = tuple(rule for rule in kept.get(name, ()) if iptables_entry.target_of(family, rule) != PROXY_GAP)
    return {name: rules for name, rules in kept.items() if rules or name not in BUILTIN[MANGLE]}


def is_needed(wanted: RuleSet, family: Family) -> bool:
    """Whether a family's tables have to be touched if there is nothing of ours in them. Touching loads them into the
    kernel, so IPv6's are only for IPv6 addresses; an IPv4 listener's proxy port cannot be reached by IPv6 anyway."""
    destinations = chain(wanted.redirects, wanted.own_redirects, wanted.allowed_sources)
    return family is Family.IPV4 or any(":" in key.address for key in destinations)


def union(have: Chains, wanted: Chains) -> Chains:
    """What is there and what is wanted, together."""
    return {
        name: _together(have.get(name, frozenset()), wanted.get(name, frozenset()))
        for name in have.keys() | wanted.keys()
    }


def _together(have: Rules, wanted: Rules) -> Rules:
    if have is wanted:
        return have
    if isinstance(have, frozenset) and isinstance(wanted, frozenset):
        return have | wanted
    return tuple(dict.fromkeys((*wanted, *have)))


@dataclass(frozen=True, slots=True)
class Difference:
    """What to do to a table, in this order."""

    create: tuple[str, ...]
    flush: tuple[str, ...]
    delete: tuple[tuple[str, Entry], ...]
    add: tuple[tuple[str, Entry], ...]
    """In a built-in chain in the order in which they are to stand there."""
    drop: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.create, self.flush, self.add, self.delete, self.drop))


def difference(have: Chains, wanted: Chains, *, table: str) -> Difference:
    """What turns one into the other."""
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
        # Finding a rule to delete takes a walk through its chain, so a chain that loses most is filled anew.
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
    """Whether a jump stands at the end of a built-in chain; the others stand at its start."""
    return entry.endswith(_LAST)


def comes_first(entry: Entry) -> bool:
    """Whether a rule stands at the start of its chain: one that ends it for some."""
    return entry.endswith(iptables_entry.jump("RETURN"))


_LAST = tuple(iptables_entry.jump(chain) for chain in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL))
