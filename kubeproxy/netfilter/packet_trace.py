"""What a rule set does to a packet, decided as the kernel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kubeproxy.model import NODE_PORTS, Address, Destination, family_of
from kubeproxy.netfilter.cidr import hold, is_loopback
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Fate(StrEnum):
    """What becomes of a client's first packet."""

    PASSED = "passed"
    """Not ours: the kernel routes it as if we were not there."""
    PROXIED = "proxied"
    REFUSED = "refused"
    DROPPED = "dropped"


class Why(StrEnum):
    """Which rule decided."""

    NO_RULE = "no rule"
    SOURCE_RANGE = "source range"
    """The destination admits certain sources only, and this is none of them."""
    GUARD = "guard"
    """A proxy port takes only what was redirected to it."""
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
    """The redirect that took it: the destination itself, or its node port."""


def trace(
    rules: RuleSet,
    destination: Destination,
    *,
    source: Address | None = None,
    from_this_host: bool = False,
    for_this_host: bool = False,
) -> Trace:
    """What meets a client that sends to `destination`.

    `source` is the client's address (None: one that is in no range), `from_this_host` tells that the packet is of the
    node itself, `for_this_host` that the destination is an address of the node, where a proxy port may be hit directly.
    """
    if destination in rules.allowed_sources and not (source and hold(frozenset(rules.admitted[destination]), source)):
        return Trace(Fate.DROPPED, why=Why.SOURCE_RANGE, matched=destination)
    is_internal = from_this_host or (source is not None and hold(rules.internal_sources, source))
    taken = _redirect(rules, destination, is_internal=is_internal, from_this_host=from_this_host)
    if taken is None:
        proxy_port = ProxyPort(destination.protocol, destination.port)
        direct = for_this_host and proxy_port in rules.guarded - rules.undisguised
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
    """The proxy port that a packet is redirected to, and by what: an address of its own comes before node ports."""
    keys = [destination] if destination.address not in NODE_PORTS.values() else []
    if destination.address in rules.node_addresses and (from_this_host or not is_loopback(destination.address)):
        keys.append(destination._replace(address=NODE_PORTS[family_of(destination.address)]))
    own, everybodys = (rules.own_redirects, Why.OWN_REDIRECT), (rules.redirects, Why.REDIRECT)
    for key in keys:
        for redirects, why in (own, everybodys) if is_internal else (everybodys,):
            if key in redirects:
                return redirects[key], why, key
    return None
