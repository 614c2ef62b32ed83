"""Writes the steps of a trace on the kernel path: which endpoints the rules may choose, and which are ejected."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from kubeproxy.model import Address, Target, Traffic
from kubeproxy.model.maglev import place_of
from kubeproxy.netfilter.cidr import contains
from kubeproxy.netfilter.nftables.affinity_lookup import Bond
from kubeproxy.netfilter.nftables.declarations import place
from kubeproxy.netfilter.nftables.dynamic_chains import spread_chain
from kubeproxy.netfilter.packet_simulation import Trace
from kubeproxy.netfilter.ruleset import ClientHash, Masquerade, RuleSet, Spread
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import EndpointStatus

SHOWN_TARGETS = 10
"""How many endpoints a trace names at most."""


def forwarding(
    spread: Spread,
    met: Trace,
    rules: RuleSet,
    endpoints: Mapping[str, EndpointStatus],
    bond: Bond | None,
    *,
    client: Address | None,
    client_port: int,
) -> Iterator[str]:
    """Yield the steps that follow once the Service is known. `endpoints` has the status of the frontend's endpoints by
    ``address:port``."""
    assert met.matched is not None
    count = len(spread.targets)
    yield f"the kernel forwards it to one of {count} endpoints, {_choice(spread)}"
    if spread.client_hash is not None:
        yield f"  {_place(spread.slots, spread.client_hash, client, client_port)}"
    yield f"  {_slots(met.matched, spread)}"
    yield from (f"  {target}" for target in spread.targets[:SHOWN_TARGETS])
    if count > SHOWN_TARGETS:
        yield f"  and {count - SHOWN_TARGETS} more"
    yield from _left_out(spread, endpoints)
    if spread.affinity_timeout_s is not None:
        yield f"a client stays with its endpoint for {spread.affinity_timeout_s} s after its last connection"
        yield f"  it is bound to {bond.endpoint}, for {bond.expires} more" if bond else "  it is bound to none yet"
    yield _masquerade(met, rules, client)


def _choice(spread: Spread) -> str:
    if spread.client_hash is not None:
        return f"by a hash of the client's address{' and port' if spread.client_hash.by_port else ''}"
    return f"at random {'by weight' if spread.slots else 'with equal shares'}"


def _place(slots: Sequence[Target], client_hash: ClientHash, client: Address | None, client_port: int) -> str:
    """Return which endpoint a hash selects for a client, and why."""
    by_port = client_hash.by_port
    if client is None or (by_port and not client_port):
        return f"which one, is decided by {'--from IP:PORT' if by_port else '--from IP'}, which is not given"
    packed = ipaddress.ip_address(client).packed
    place_ = place_of(packed, client_port if by_port else None, seed=client_hash.seed, size=len(slots))
    return f"{Target(client, client_port) if by_port else client} has slot {place_}, which is that of {slots[place_]}"


def _slots(traffic: Traffic, spread: Spread) -> str:
    """Return the names of the maps in which ``nft list table inet kubeproxy`` shows the slots."""
    destination, origin = traffic
    count = len(spread.slots) or len(spread.targets)
    spreads = place(destination, "spreads", origin)
    slots = place(destination, f"{destination.protocol.lower()}_slots", origin)
    chain = spread_chain(traffic, count, spread.client_hash)
    return f"map {spreads}, chain {chain}, slots 0 to {count - 1} of map {slots}"


def _left_out(spread: Spread, endpoints: Mapping[str, EndpointStatus]) -> Iterator[str]:
    used = frozenset(spread.targets)
    left_out: list[Target] = [target for target in spread.endpoints if target not in used]
    if not left_out:
        return
    yield f"{words.several(len(left_out), 'endpoint gets', 'endpoints get')} no new clients at present"
    for target in left_out[:SHOWN_TARGETS]:
        status = endpoints.get(str(target))
        reason = "" if status is None else words.endpoint(status)
        yield f"  {target}{f': {reason}' if reason else ''}"


def _masquerade(met: Trace, rules: RuleSet, client: Address | None) -> str:
    if not met.masqueraded or met.matched is None:
        link = next(
            (
                direct_link
                for direct_link in sorted(rules.direct_links)
                if client and contains(frozenset({direct_link.cidr}), client)
            ),
            None,
        )
        if link is not None:
            return (
                f"the endpoint sees the client's address; one that is reached by {link.interface}, as the client is, "
                "sees an address of this node, so that its answer comes back here"
            )
        return "the endpoint sees the client's address, unless it is its own client"
    why = _WHY_MASQUERADED.get(rules.masquerades[met.matched.destination], "")
    return f"the endpoint sees an address of this node, so that its answer comes back here{why}"


_WHY_MASQUERADED = {
    Masquerade.OUTSIDE: " (the client is outside clusterCIDR)",
    Masquerade.NODE: " (the client is this node)",
}
