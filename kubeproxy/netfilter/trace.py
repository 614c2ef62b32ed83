"""What a rule set does to a packet, decided as the kernel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.model import NODE_PORTS, Address, Destination, family_of
from kubeproxy.netfilter.ranges import hold, is_loopback
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet


class Fate(StrEnum):
    """What becomes of a client's first packet."""

    PASSED = "passed"
    """Not ours: the kernel routes it as if we were not there."""
    PROXIED = "proxied"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Trace:
    """The fate of a packet, and the proxy port that it was redirected to (None: to none)."""

    fate: Fate
    proxy_port: int | None = None


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
        return Trace(Fate.DROPPED)
    is_internal = from_this_host or (source is not None and hold(rules.internal_sources, source))
    port = _redirect(rules, destination, is_internal=is_internal, from_this_host=from_this_host)
    if port is None:
        proxy_port = ProxyPort(destination.protocol, destination.port)
        direct = for_this_host and proxy_port in rules.guarded - rules.undisguised
        return Trace(Fate.DROPPED if direct else Fate.PASSED)
    proxy_port = ProxyPort(destination.protocol, port)
    if proxy_port in rules.dropped:
        return Trace(Fate.DROPPED, port)
    return Trace(Fate.REFUSED if proxy_port in rules.refused else Fate.PROXIED, port)


def _redirect(rules: RuleSet, destination: Destination, *, is_internal: bool, from_this_host: bool) -> int | None:
    """The proxy port that a packet is redirected to: an address of its own comes before node ports."""
    keys = [destination] if destination.address not in NODE_PORTS.values() else []
    if destination.address in rules.node_addresses and (from_this_host or not is_loopback(destination.address)):
        keys.append(destination._replace(address=NODE_PORTS[family_of(destination.address)]))
    for key in keys:
        for redirects in (rules.own_redirects, rules.redirects) if is_internal else (rules.redirects,):
            if key in redirects:
                return redirects[key]
    return None
