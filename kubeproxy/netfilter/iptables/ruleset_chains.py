"""Turns a rule set into chains of the legacy tables.

Names and comments are those of kube-proxy's userspace mode, so that either proxy replaces the rules that the other one
has left. ``docs/netfilter.md`` shows the rules.
"""

from __future__ import annotations

from itertools import chain

from kubeproxy.model import MARK, Family, family_of
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.chains import (
    BUILTIN,
    FILTER,
    MANGLE,
    NAT,
    NODEPORT_CONTAINER,
    NODEPORT_HOST,
    NODEPORT_INTERNAL,
    OWN,
    PORTALS_CONTAINER,
    PORTALS_HOOKS,
    PORTALS_HOST,
    PORTALS_INTERNAL,
    PORTS_CONTAINER,
    PORTS_HOST,
    PORTS_INTERNAL,
    PROXY_CLOSED,
    PROXY_DIRECT,
    PROXY_DIVERT,
    PROXY_PAUSE,
    PROXY_PAUSE_PORTS,
    PROXY_PORTS,
    PROXY_SOCKETS,
    PROXY_SOURCES,
    Chains,
    RuleFactory,
    Rules,
)
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.iptables.nat import nat
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet

_SOURCES_COMMENT = "drop packets from sources that are not admitted, hence not redirected"
_DIVERT_COMMENT = "mark answers to connections from addresses of clients"
_PAUSE_COMMENT = "pause clients until the next proxy serves"
_PORTS_COMMENT = "guard proxy ports, refuse clients of services without endpoints"


def chains_of(wanted: RuleSet, family: Family, rule_factory: RuleFactory | None = None) -> dict[str, Chains]:
    """Return the chains of a rule set in each table of a family. Chains and jumps exist even if they are empty.
    Otherwise the kernel would stop tracking connections with the last rule that needs it, which would break every
    running connection. (Chains for node ports and for pods exist only if they have rules.)"""
    rule_factory = rule_factory or RuleFactory()
    mangle = divert(family) if wanted.transparent else {}
    return {NAT: nat(wanted, family, rule_factory), FILTER: _filter(wanted, family, rule_factory), MANGLE: mangle}


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
    # Redirected packets that no socket of ours would get are treated like packets sent directly to the port.
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
    """Return the chains of table mangle that mark packets for transparent rule sets."""
    comment = iptables_entry.match_comment(_DIVERT_COMMENT)
    return {
        "PREROUTING": (iptables_entry.rule(family, iptables_entry.jump(PROXY_DIVERT), comment),),
        PROXY_DIVERT: frozenset(
            {
                # Packets addressed to this host are excluded: accepted sockets are transparent like their listeners,
                # but their clients' packets need no special routing.
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
    """Return the chain of table filter that treats a redirected packet like a direct one, unless its socket is
    transparent, as our listeners are."""
    return {
        PROXY_SOCKETS: frozenset(
            {own_socket_rule(family), iptables_entry.rule(family, iptables_entry.jump(PROXY_DIRECT))}
        )
    }


def own_socket_rule(family: Family) -> Entry:
    """Return the rule that lets packets for a transparent socket leave the chain `PROXY_SOCKETS`."""
    return iptables_entry.rule(family, iptables_entry.jump("RETURN"), iptables_entry.match_transparent(wildcard=True))


def pause(have: Chains, family: Family, *, until: int) -> Chains:
    """Return the chains of table mangle for a pause. They drop first packets to the destinations that `have` redirects.

    The jumps to these chains match packets from any source, until the Unix time `until`. Return nothing if there are no
    redirects.
    """

    def drops(*chains: str) -> frozenset[Entry]:
        return frozenset(
            iptables_entry.with_target(family, entry, iptables_entry.jump("DROP"))
            for name in chains
            for entry in have.get(name, ())
            if iptables_entry.target_of(family, entry) in ("DNAT", "REDIRECT")
        )

    exact = drops(PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL, PORTALS_HOOKS)
    on_node = drops(PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL)
    if not exact and not on_node:
        return {}
    to_ports = frozenset(
        iptables_entry.with_target(family, entry, iptables_entry.jump(PROXY_PAUSE_PORTS))
        for name in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL)
        for entry in have.get(name, ())
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


def without_pause(mangle: Chains, family: Family) -> Chains:
    """Return the chains of table mangle without those of a pause."""
    kept = {name: rules for name, rules in mangle.items() if name not in (PROXY_PAUSE, PROXY_PAUSE_PORTS)}
    for name in BUILTIN[MANGLE]:
        kept[name] = tuple(rule for rule in kept.get(name, ()) if iptables_entry.target_of(family, rule) != PROXY_PAUSE)
    return {name: rules for name, rules in kept.items() if rules or name not in BUILTIN[MANGLE]}


def is_needed(wanted: RuleSet, family: Family) -> bool:
    """Return whether a family's tables have to be opened even if they have no rules of ours.

    Opening a table loads it into the kernel, so IPv6 tables are opened only if there are IPv6 addresses. The proxy port
    of an IPv4 listener cannot be reached over IPv6 anyway.
    """
    destinations = chain((destination for destination, _ in wanted.redirects), wanted.allowed_sources, wanted.hooks)
    return family is Family.IPV4 or any(":" in destination.address for destination in destinations)
