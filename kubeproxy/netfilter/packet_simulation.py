"""Decides what a rule set does to a packet, as the kernel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Destination, family_of
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.ruleset import Masquerade, ProxyPort, RuleSet, Spread


class Fate(StrEnum):
    """The outcome for a client's first packet."""

    PASSED = "passed"
    """No rule of ours applies: the kernel routes it as usual."""
    PROXIED = "proxied"
    FORWARDED = "forwarded"
    """The kernel leads the client straight to an endpoint."""
    REFUSED = "refused"
    DROPPED = "dropped"


class Why(StrEnum):
    """The kind of rule that decided."""

    NO_RULE = "no rule"
    SOURCE_RANGE = "source range"
    """The destination does not admit this source."""
    GUARD = "guard"
    """A proxy port accepts redirected packets only."""
    REDIRECT = "redirect"
    OWN_REDIRECT = "own redirect"
    """A redirect for this node itself and for pods."""
    SPREAD = "spread"
    OWN_SPREAD = "own spread"
    """A spread for this node itself and for pods."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The fate of a packet, and the proxy port that it was redirected to (None: to none)."""

    fate: Fate
    proxy_port: int | None = None
    why: Why = field(default=Why.NO_RULE, compare=False)
    matched: Destination | None = field(default=None, compare=False)
    """The redirect that applied: that of the destination itself, or of its node port."""
    spread: Spread | None = field(default=None, compare=False)
    """The endpoints, when it is forwarded."""
    masqueraded: bool = False
    """Whether the endpoint sees an address of this node, and not the client's. (An endpoint that is its own client
    always does.)"""


def trace(
    rules: RuleSet,
    destination: Destination,
    *,
    source: Address | None = None,
    from_this_host: bool = False,
    for_this_host: bool = False,
    by_uplink: bool = False,
) -> Trace:
    """Return the outcome for a client that sends to `destination`.

    `source`: the client's address (None: one that is in no range); `from_this_host`: the node itself sends the packet;
    `for_this_host`: the destination is an address of the node, where a packet may reach a proxy port directly;
    `by_uplink`: the packet comes by one of `RuleSet.uplinks`.
    """
    if destination in rules.allowed_sources and not (
        source and contains(frozenset(rules.admitted[destination]), source)
    ):
        return Trace(Fate.DROPPED, why=Why.SOURCE_RANGE, matched=destination)
    is_own = source is not None and contains(rules.internal_sources, source)
    is_internal = from_this_host or (is_own and not by_uplink)
    taken = _lead(rules, destination, is_internal=is_internal, from_this_host=from_this_host)
    if isinstance(taken, _Forwarded):
        spread, why, matched = taken
        masqueraded = _is_masqueraded(rules.masquerades.get(matched), is_own=is_own, from_this_host=from_this_host)
        return Trace(Fate.FORWARDED, None, why, matched, spread, masqueraded)
    if taken is None:
        proxy_port = ProxyPort(destination.protocol, destination.port)
        direct = for_this_host and proxy_port in rules.guarded - rules.unguarded
        return Trace(Fate.DROPPED, why=Why.GUARD) if direct else Trace(Fate.PASSED)
    port, why, matched = taken
    proxy_port = ProxyPort(destination.protocol, port)
    if proxy_port in rules.dropped:
        fate = Fate.DROPPED
    else:
        fate = Fate.REFUSED if proxy_port in rules.refused else Fate.PROXIED
    return Trace(fate, port, why, matched)


class _Forwarded(NamedTuple):
    """A spread that applies."""

    spread: Spread
    why: Why
    matched: Destination


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


def _lead(
    rules: RuleSet, destination: Destination, *, is_internal: bool, from_this_host: bool
) -> tuple[int, Why, Destination] | _Forwarded | None:
    """Return the endpoints or the proxy port of a packet: those of its address come before those of a node port."""
    keys = [destination] if destination.address not in NODE_PORTS.values() else []
    if destination.address in rules.node_addresses and (from_this_host or not is_loopback(destination.address)):
        keys.append(destination._replace(address=NODE_PORTS[family_of(destination.address)]))
    own = (rules.own_spreads, Why.OWN_SPREAD, rules.own_redirects, Why.OWN_REDIRECT)
    general = (rules.spreads, Why.SPREAD, rules.redirects, Why.REDIRECT)
    for key in keys:
        for spreads, forwarded, redirects, why in (own, general) if is_internal else (general,):
            spread = spreads.get(key)
            if spread is not None and spread.targets and not is_loopback(destination.address):
                return _Forwarded(spread, forwarded, key)
            if key in redirects:
                return redirects[key], why, key
    return None
