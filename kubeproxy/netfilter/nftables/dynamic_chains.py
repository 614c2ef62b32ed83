"""The chains of our nftables table that come and go with the Services: their names, and the rules that choose a
slot."""

from __future__ import annotations

import re

from kubeproxy.model import Family, Traffic
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import IP, place
from kubeproxy.netfilter.nftables.rules import Rule
from kubeproxy.netfilter.ruleset import ClientHash, Spread


def spread_chain(traffic: Traffic, slots: int, client_hash: ClientHash | None = None) -> str:
    """Return the name of the chain that chooses one of `slots` slots, at random or by a hash of the client."""
    destination, origin = traffic
    chosen_by = ""
    if client_hash is not None:
        chosen_by = f"_{'port' if client_hash.by_port else 'address'}{client_hash.seed:08x}"
    return f"{place(destination, f'{destination.protocol.lower()}_spread', origin)}{chosen_by}_{slots}"


def choice_of(chain: str) -> tuple[int, ClientHash | None]:
    """Return the number of slots and the hash (None for a random choice) that a name made by `spread_chain` stands
    for."""
    match = _SPREAD.fullmatch(chain)
    if match is None:
        raise ValueError(chain)
    _, hashed, seed, slots = match.groups()
    return int(slots), ClientHash(hashed == "port", int(seed, 16)) if hashed else None


_SPREAD = re.compile(r"((?:own_)?(?:node_port_)?(?:tcp|udp)_spread[46])(?:_(port|address)([0-9a-f]{8}))?_([0-9]+)")


def spread_rules(chain: str, *, rescued: bool) -> tuple[Rule, ...]:
    """Return the rules of a chain with a name made by `spread_chain`. With `rescued`, its failed connections are
    reported."""
    slots, client_hash = choice_of(chain)
    name = "_".join(chain.split("_")[: -1 if client_hash is None else -2])
    family = Family(int(name[-1]))
    is_tcp = "tcp_spread" in name
    protocol = "tcp" if is_tcp else "udp"
    key = f"{protocol} dport" if "node_port" in name else f"{IP[family]} daddr . {protocol} dport"
    if client_hash is None:
        chosen, why = f"numgen random mod {slots}", f"one of {slots} slots"
    else:
        client = f"{IP[family]} saddr" + (f" . {protocol} sport" if client_hash.by_port else "")
        chosen, why = f"jhash {client} mod {slots} seed {client_hash.seed}", f"the client's of {slots} slots"
    return (
        *((Rule(*rescue.copying(family)),) if is_tcp and rescued else ()),
        Rule(
            f"dnat {IP[family]} to {key} . {chosen} map @{name.replace('spread', 'slots')}",
            why,
        ),
    )


UNUSUAL = re.compile(r"[^A-Za-z0-9./:-]")
"""Matches the characters that must not occur in a comment or in the name of an object."""
LONGEST = 120
"""The largest length of a name, both in a comment (nft's limit is 128) and as an object's name."""


def comment_of(spread: Spread) -> str:
    """Return the name of a service port in a form that is allowed in a comment."""
    return UNUSUAL.sub("?", spread.service_port)[:LONGEST]


_DYNAMIC = re.compile(rf"{_SPREAD.pattern}|(?:sticky|learn)[46]-.+")


def is_dynamic(chain: str) -> bool:
    """Return whether a chain is one of those that come and go with Services."""
    return _DYNAMIC.fullmatch(chain) is not None


def draws_slots(chain: str) -> bool:
    """Return whether a chain chooses a slot for each connection."""
    return is_dynamic(chain) and not chain.startswith(("sticky", "learn"))
