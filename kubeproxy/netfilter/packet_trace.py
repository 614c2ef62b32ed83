"""Decides what a rule set does to a packet, as the kernel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.model import NODE_PORTS, Address, Destination, family_of
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Fate(StrEnum):
    """The outcome for a client's first packet."""

    PASSED = "passed"
    """No rule of ours applies: the kernel routes it as usual."""
    PROXIED = "proxied"
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


@dataclass(frozen=True, slots=True)
class Trace:
    """The fate of a packet, and the proxy port that it was redirected to (None: to none)."""

    fate: Fate
    proxy_port: int | None = None
    why: Why = field(default=Why.NO_RULE, compare=False)
    matched: Destination | None = field(default=None, compare=False)
    """The redirect that applied: that of the destination itself, or of its node port."""


def trace(
    rules: RuleSet,
    destination: Destination,
    *,
    source: Address | None = None,
    from_this_host: bool = False,
    for_this_host: bool = False,
) -> Trace:
    """The outcome for a client that sends to `destination`.

    `source`: the client's address (None: one that is in no range); `from_this_host`: the node itself sends the packet;
    `for_this_host`: the destination is an address of the node, where a packet may reach a proxy port directly.
    """
    if destination in rules.allowed_sources and not (
        source and contains(frozenset(rules.admitted[destination]), source)
    ):
        return Trace(Fate.DROPPED, why=Why.SOURCE_RANGE, matched=destination)
    is_internal = from_this_host or (source is not None and contains(rules.internal_sources, source))
    taken = _redirect(rules, destination, is_internal=is_internal, from_this_host=from_this_host)
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


def _redirect(
    rules: RuleSet, destination: Destination, *, is_internal: bool, from_this_host: bool
) -> tuple[int, Why, Destination] | None:
    """The proxy port of a packet, and the redirect: one of its address comes before one of a node port."""
    keys = [destination] if destination.address not in NODE_PORTS.values() else []
    if destination.address in rules.node_addresses and (from_this_host or not is_loopback(destination.address)):
        keys.append(destination._replace(address=NODE_PORTS[family_of(destination.address)]))
    own, general = (rules.own_redirects, Why.OWN_REDIRECT), (rules.redirects, Why.REDIRECT)
    for key in keys:
        for redirects, why in (own, general) if is_internal else (general,):
            if key in redirects:
                return redirects[key], why, key
    return None
