"""Decides what a rule set does to a packet, in the same way as the kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Destination, Origin, Traffic, family_of
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.ruleset import Masquerade, ProxyPort, RuleSet, Spread


class Fate(StrEnum):
    """What happens to a client's first packet."""

    PASSED = "passed"
    """No rule of ours applies, and the kernel routes the packet as usual."""
    PROXIED = "proxied"
    FORWARDED = "forwarded"
    """The kernel sends the client straight to an endpoint."""
    REFUSED = "refused"
    DROPPED = "dropped"


class Why(StrEnum):
    """The kind of rule that decided what happens to the packet."""

    NO_RULE = "no rule"
    SOURCE_RANGE = "source range"
    """The destination does not admit the client's source address."""
    GUARD = "guard"
    """The proxy port accepts only redirected packets."""
    REDIRECT = "redirect"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Trace:
    """What happens to a packet, and the proxy port to which it was redirected, or None without a redirect."""

    fate: Fate
    proxy_port: int | None = None
    why: Why = field(default=Why.NO_RULE, compare=False)
    matched: Traffic | None = field(default=None, compare=False)
    """The traffic whose rule applied: of the destination itself, or of its node port."""
    spread: Spread | None = field(default=None, compare=False)
    """The spread, if the packet is forwarded."""
    masqueraded: bool = False
    """Whether the endpoint sees an address of this node instead of the client's address. (This is always so for an
    endpoint that is its own client.)"""


def trace(
    rules: RuleSet,
    destination: Destination,
    *,
    source: Address | None = None,
    from_this_host: bool = False,
    for_this_host: bool = False,
    by_uplink: bool = False,
) -> Trace:
    """Return what happens to a first packet to `destination`. `source` is the client's address, or None for an address
    in no range. `from_this_host` says that the node itself sends the packet. `for_this_host` says that the destination
    is an address of the node, where a packet may reach a proxy port directly. `by_uplink` says that the packet arrives
    on one of `RuleSet.uplinks`."""
    if destination in rules.allowed_sources and not (
        source and contains(frozenset(rules.admitted[destination]), source)
    ):
        return Trace(Fate.DROPPED, why=Why.SOURCE_RANGE)
    is_own = source is not None and contains(rules.internal_sources, source)
    is_internal = from_this_host or (is_own and not by_uplink)
    taken = _rule_for(rules, destination, is_internal=is_internal, from_this_host=from_this_host)
    if isinstance(taken, _Forwarded):
        spread, matched = taken
        masquerade = rules.masquerades.get(matched.destination)
        masqueraded = _is_masqueraded(masquerade, is_own=is_own, from_this_host=from_this_host)
        return Trace(Fate.FORWARDED, None, Why.SPREAD, matched, spread, masqueraded)
    if taken is None:
        proxy_port = ProxyPort(destination.protocol, destination.port)
        direct = for_this_host and proxy_port in rules.guarded - rules.unguarded
        return Trace(Fate.DROPPED, why=Why.GUARD) if direct else Trace(Fate.PASSED)
    port, matched = taken
    proxy_port = ProxyPort(destination.protocol, port)
    if proxy_port in rules.dropped:
        fate = Fate.DROPPED
    else:
        fate = Fate.REFUSED if proxy_port in rules.refused else Fate.PROXIED
    return Trace(fate, port, Why.REDIRECT, matched)


class _Forwarded(NamedTuple):
    """The spread that applies to a packet."""

    spread: Spread
    matched: Traffic


def _is_masqueraded(masquerade: Masquerade | None, *, is_own: bool, from_this_host: bool) -> bool:
    match masquerade:
        case Masquerade.ALWAYS:
            return True
        case Masquerade.OUTSIDE:
            return not is_own
        case Masquerade.NODE:
            return from_this_host
        case _:
            return False


def _rule_for(
    rules: RuleSet, destination: Destination, *, is_internal: bool, from_this_host: bool
) -> tuple[int, Traffic] | _Forwarded | None:
    """Return the spread or the proxy port for a packet. Rules for its address take precedence over those for a node
    port."""
    places = [destination] if destination.address not in NODE_PORTS.values() else []
    if destination.address in rules.node_addresses and (from_this_host or not is_loopback(destination.address)):
        places.append(destination._replace(address=NODE_PORTS[family_of(destination.address)]))
    for place in places:
        for origin in Origin if is_internal else (Origin.ANYWHERE,):
            traffic = Traffic(place, origin)
            spread = rules.spreads.get(traffic)
            if spread is not None and spread.targets and not is_loopback(destination.address):
                return _Forwarded(spread, traffic)
            if traffic in rules.redirects:
                return rules.redirects[traffic], traffic
    return None
