"""Reads our nftables table from the output of ``nft -j list table``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import msgspec

from kubeproxy.model import NODE_PORTS, Address, Destination, Protocol, Target, Traffic
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import (
    CLIENTS,
    DIVERT,
    DIVERT_HOOK,
    HOOKS,
    KINDS,
    PAUSE_SETS,
    REDIRECTS,
    SETS,
    SLOTS,
    SPREADS,
    VERDICTS,
    Kind,
)
from kubeproxy.netfilter.nftables.elements import Element
from kubeproxy.netfilter.nftables.rules import choice_of, is_dynamic
from kubeproxy.netfilter.nftables.spreads import Slots
from kubeproxy.netfilter.nftables.transaction import EMPTY, Table

_PROTOCOLS = {"tcp": Protocol.TCP, "udp": Protocol.UDP, "sctp": Protocol.SCTP}

# As far as it is used; libnftables-json(5) describes it.


class _Set(msgspec.Struct):
    name: str
    type: Any
    map: Any = None
    elem: Sequence[Any] = ()
    flags: Any = None

    @property
    def declared(self) -> tuple[Any, ...]:
        """Its type, values and flags, as nft 1.0.6 lists them.

        nft 1.1 names the expressions of a key with a type that has no name, lists the types of several values, and
        names the flag of a set that rules fill."""
        values = " . ".join(self.map) if isinstance(self.map, list) else self.map
        flags = [self.flags] if isinstance(self.flags, str) else self.flags
        return (_type(self.type), values, [flag for flag in flags or () if flag != "dynamic"] or None)


def _type(found: Any) -> Any:
    """Return the type of a key, also where nft lists it by the expressions that have it."""
    match found:
        case {"typeof": {"concat": [*expressions]}}:
            return [_TYPES.get(_expression(it)) for it in expressions]
        case {"typeof": expression}:
            return _TYPES.get(_expression(expression))
    return found


_TYPES: Mapping[tuple[str, str] | None, str] = {
    ("ip", "daddr"): "ipv4_addr",
    ("ip6", "daddr"): "ipv6_addr",
    ("tcp", "dport"): "inet_service",
    ("udp", "dport"): "inet_service",
    ("numgen", "random"): "integer",
}
"""The types of the expressions in the keys of our maps."""


def _expression(found: Any) -> tuple[str, str] | None:
    match found:
        case {"payload": {"protocol": str(protocol), "field": str(field)}}:
            return protocol, field
        case {"numgen": {"mode": str(mode)}}:
            return "numgen", mode
    return None


class _Chain(msgspec.Struct):
    name: str
    type: str | None = None
    hook: str | None = None
    prio: int | None = None
    policy: str | None = None

    @property
    def base(self) -> tuple[str | None, str | None, int | None, str | None] | None:
        """Its hook; None for a chain without one."""
        return (self.type, self.hook, self.prio, self.policy) if self.hook else None


class _Rule(msgspec.Struct):
    chain: str
    comment: str = ""


class _Item(msgspec.Struct):
    set: _Set | None = None
    map: _Set | None = None
    chain: _Chain | None = None
    rule: _Rule | None = None


class _Listing(msgspec.Struct):
    nftables: list[_Item]


_decoder = msgspec.json.Decoder(_Listing)


def parse(listing: bytes) -> Table:
    """Return the table in the output of `nft -j list table`; msgspec.MsgspecError when that is no such output."""
    try:
        items = _decoder.decode(listing).nftables
    except (UnicodeDecodeError, RecursionError) as error:  # a comment may hold any bytes
        raise msgspec.DecodeError(str(error)) from error
    sets = {kind.name: kind for item in items if (kind := item.set or item.map) is not None}
    hooks = {chain.name: chain.base for item in items if (chain := item.chain) is not None}
    comments: dict[str, list[str]] = {name: [] for name in hooks}
    for item in items:
        if item.rule is not None:
            comments.setdefault(item.rule.chain, []).append(item.rule.comment)
    clients = {name: kind for name, kind in sets.items() if name.startswith("clients")}
    found = EMPTY
    try:
        # Redirects are read from tables of other versions, too: their clients are paused like our own.
        redirects = _redirects(sets)
        found = replace(EMPTY, redirects=redirects)
        elements: dict[str, Set[Element]] = {
            name: frozenset(_parse_element(kind.key, value) for value in sets[name].elem) for name, kind in SETS.items()
        }
        rescued = {**hooks, **sets}.keys() & {**rescue.HOOKS, **rescue.SETS}.keys()
        declared = {
            name: kind.declared for name, kind in sets.items() if name not in clients and name not in rescue.SETS
        }
        static = {
            name: hook
            for name, hook in hooks.items()
            if not is_dynamic(name) and name not in rescue.HOOKS and name != DIVERT
        }
        return Table(
            chains={name: tuple(texts) for name, texts in comments.items()},
            redirects=redirects,
            sets=elements,
            slots=_slots(sets),
            verdicts={
                (name, traffic.destination): chain
                for name, kind in VERDICTS.items()
                for traffic, (chain, _) in _jumps(kind, sets[name]).items()
            },
            clients=frozenset(clients),
            kept={name: frozenset(_clients(kind).values()) for name, kind in clients.items()},
            transparent=DIVERT in hooks,
            rescue=bool(rescued),
            paused=any(sets[name].elem for name in PAUSE_SETS if name in sets),
            sound=static == HOOKS
            and hooks.get(DIVERT, DIVERT_HOOK) == DIVERT_HOOK
            and all(hook is None for name, hook in hooks.items() if is_dynamic(name))
            and (not rescued or _has_rescue(hooks, sets))
            and declared == {name: kind.listed for name, kind in KINDS.items()}
            and all(kind.declared in _CLIENTS for kind in clients.values()),
        )
    except (KeyError, TypeError, ValueError):
        # We never add elements of another form (with timeouts, counters, other protocols).
        return found


def _has_rescue(hooks: Mapping[str, Any], sets: Mapping[str, _Set]) -> bool:
    """Return whether the chains and sets for failed connections are those of this version."""
    return {name: hook for name, hook in hooks.items() if name in rescue.HOOKS} == rescue.HOOKS and {
        name: kind.declared for name, kind in sets.items() if name in rescue.SETS
    } == rescue.SETS


_CLIENTS = tuple(kind.listed for kind in CLIENTS.values())


def _redirects(sets: Mapping[str, _Set]) -> dict[Traffic, int]:
    return {
        _traffic(kind, key["concat"]): _port(port) for name, kind in REDIRECTS.items() for key, port in sets[name].elem
    }


def _slots(sets: Mapping[str, _Set]) -> dict[Traffic, Slots]:
    """Return the slots of the traffic that jumps to a chain. Raise ValueError if a slot is missing or surplus."""
    numbered: dict[Traffic, dict[int, Target]] = {}
    for name, kind in SLOTS.items():
        for key, value in sets[name].elem:
            *where, at, number = key["concat"]
            address, port = value["concat"]
            targets = numbered.setdefault(_traffic(kind, [*where, str(kind.protocol).lower(), at]), {})
            targets[_port(number)] = Target(Address(_canonical(address)), _port(port))
    slots: dict[Traffic, Slots] = {}
    for name, kind in SPREADS.items():
        for traffic, (chain, comment) in _jumps(kind, sets[name]).items():
            targets = numbered.pop(traffic, {})
            count, client_hash = choice_of(chain)
            if not 0 < count == len(targets):
                raise ValueError(chain)
            slots[traffic] = Slots(tuple(targets[number] for number in range(count)), comment, client_hash)
    if numbered:
        raise ValueError("slots without a jump")
    return slots


def _jumps(kind: Kind, found: _Set) -> dict[Traffic, tuple[str, str]]:
    """Return the chain to which each traffic jumps, and the comment of the jump."""
    jumps = {}
    for element, verdict in found.elem:
        held = element.get("elem", {"val": element})
        jumps[_traffic(kind, held["val"]["concat"])] = (verdict["jump"]["target"], held.get("comment", ""))
    return jumps


def _traffic(kind: Kind, fields: Sequence[Any]) -> Traffic:
    *address, protocol, port = fields
    where = Address(_canonical(address[0])) if address else NODE_PORTS[kind.family]
    return Traffic(Destination(where, _PROTOCOLS[protocol], _port(port)), kind.origin)


def clients_in(listing: bytes) -> dict[Address, Address]:
    """Return the clients in the output of `nft -j list map`, and the addresses of their endpoints."""
    maps = (item.map for item in _decoder.decode(listing).nftables)
    return {client: endpoint for found in maps if found is not None for client, endpoint in _clients(found).items()}


def counts_in(listing: bytes, name: str) -> Iterator[tuple[Traffic, int]]:
    """Yield the traffic in the output of `nft -j list map`, each with the packets that its element has counted."""
    kind = KINDS[name]
    for item in _decoder.decode(listing).nftables:
        for element, _ in item.map.elem if item.map is not None else ():
            if "elem" in element and (counter := element["elem"].get("counter")):
                yield _traffic(kind, element["elem"]["val"]["concat"]), counter["packets"]


def _clients(found: _Set) -> dict[Address, Address]:
    clients = {}
    for element, endpoint in found.elem:
        client = element["elem"]["val"] if isinstance(element, dict) else element
        clients[Address(_canonical(client))] = Address(_canonical(endpoint))
    return clients


def _parse_element(key: Sequence[str], value: Any) -> Element:
    fields = value["concat"] if len(key) > 1 else [value]
    return tuple(_parse_field(kind, field) for kind, field in zip(key, fields, strict=True))


def _parse_field(kind: str, field: Any) -> str | int:
    if kind == "inet_proto":
        return _PROTOCOLS[field]
    if kind == "inet_service":
        return _port(field)
    if isinstance(field, dict):
        prefix = field["prefix"]
        return f"{_canonical(prefix['addr'])}/{prefix['len']}"
    return _canonical(field)


def _port(found: Any) -> int:
    if not isinstance(found, int):
        raise TypeError(found)
    return found


def _canonical(address: Any) -> str:
    """Return an address as the model writes it; nft prints the ends of some IPv6 addresses as IPv4 addresses."""
    if not isinstance(address, str):
        raise TypeError(address)
    return str(ipaddress.ip_address(address)) if ":" in address and "." in address else address
