"""Our nftables table as a value: wanted, in the kernel, and the transaction between. Pure.

Chains, maps and sets are static; what changes with the cluster are elements, so that the cost of a packet and of a
change does not grow with the number of Services. ``docs/netfilter.md`` shows the table.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from kubeproxy.model import MARK, NODE_PORTS, Address, Destination, Family, Protocol, family_of
from kubeproxy.netfilter.cidr import disjoint, of_family
from kubeproxy.netfilter.ruleset import Reach, RuleSet

TABLE = "inet kubeproxy"


class Kind(NamedTuple):
    """The declaration of a map or set: the types of its key, and whether elements have address ranges, or expire."""

    key: tuple[str, ...]
    ranges: bool = False
    expires: bool = False

    @property
    def flag(self) -> str | None:
        """The flag in nft's syntax."""
        return "interval" if self.ranges else "timeout" if self.expires else None


_ADDRESS = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}
_PORT = ("inet_proto", "inet_service")

_MAPS: Mapping[str, Kind] = {
    **{f"own_redirects{family.value}": Kind((_ADDRESS[family], *_PORT)) for family in Family},
    **{f"redirects{family.value}": Kind((_ADDRESS[family], *_PORT)) for family in Family},
    **{f"own_node_ports{family.value}": Kind(_PORT) for family in Family},
    **{f"node_ports{family.value}": Kind(_PORT) for family in Family},
}
"""The maps; the value of each is a proxy port."""

_SETS: Mapping[str, Kind] = {
    "guarded": Kind(_PORT),
    "unguarded": Kind(_PORT),
    "refused": Kind(_PORT),
    "dropped": Kind(_PORT),
    **{f"node_addresses{family.value}": Kind((_ADDRESS[family],)) for family in Family},
    **{f"internal_sources{family.value}": Kind((_ADDRESS[family],), ranges=True) for family in Family},
    **{f"admitted{family.value}": Kind((_ADDRESS[family], *_PORT, _ADDRESS[family]), ranges=True) for family in Family},
    **{f"restricted{family.value}": Kind((_ADDRESS[family], *_PORT)) for family in Family},
}
"""In the order in which elements are added: those admitted to a destination come before its restriction."""

_PAUSE_SETS: Mapping[str, Kind] = {
    **{f"paused{family.value}": Kind((_ADDRESS[family], *_PORT), expires=True) for family in Family},
    **{f"paused_ports{family.value}": Kind(_PORT, expires=True) for family in Family},
}
"""Destinations whose first packets are dropped while no instance serves; empty at any other time."""

# Five before the usual priorities: our redirects come before another NAT table (hostports, Docker) can take the packet,
# and a refusal is sent before a host firewall could drop the packet. "divert" sets marks before the packet is routed.
# Numbers, because nft knows the name "dstnat" in some hooks only.
_HOOKS: Mapping[str, tuple[str, str, int, str] | None] = {
    "divert": ("filter", "prerouting", -150, "accept"),
    "prerouting": ("nat", "prerouting", -105, "accept"),
    "output": ("nat", "output", -105, "accept"),
    "input": ("filter", "input", -5, "accept"),
    "guard": None,
}

_CHUNK = 1000
"""Elements of one step: small enough for the netlink buffer of an unprivileged user namespace."""

_PROTOCOLS = {"tcp": Protocol.TCP, "udp": Protocol.UDP, "sctp": Protocol.SCTP}

Element = tuple[str | int, ...]
"""A key: addresses, ranges and protocols as text, ports as numbers. A `ProxyPort` is one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and the comment by which it is recognized."""

    text: str
    why: str

    @property
    def comment(self) -> str:
        """Its reason and a digest of its text. Rules are compared by it, as versions of nft print them differently."""
        return f"{self.why} #{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Table:
    """The contents of the table, wanted or in the kernel."""

    chains: Mapping[str, tuple[str, ...]]
    """The comments of each chain's rules, in order."""
    redirects: Mapping[Destination, int]
    own_redirects: Mapping[Destination, int]
    sets: Mapping[str, frozenset[Element]]
    paused: bool = False
    """Whether there is a pause, over or not."""
    sound: bool = True
    """Whether maps, sets and chains are declared as by this version; otherwise the table is made anew."""

    @classmethod
    def of(cls, wanted: RuleSet) -> Table:
        """The table of a rule set."""
        return cls(
            chains={chain: tuple(rule.comment for rule in rules) for chain, rules in rules_of(wanted).items()},
            redirects=wanted.redirects,
            own_redirects=wanted.own_redirects,
            sets=_sets_of(wanted),
        )


EMPTY = Table(chains={}, redirects={}, own_redirects={}, sets=dict.fromkeys(_SETS, frozenset()), sound=False)


def _sets_of(wanted: RuleSet) -> dict[str, frozenset[Element]]:
    sets: dict[str, frozenset[Element]] = {
        "guarded": wanted.guarded,
        "unguarded": wanted.unguarded,
        "refused": wanted.refused,
        "dropped": wanted.dropped,
    }
    for family in Family:
        number = family.value
        sets[f"node_addresses{number}"] = frozenset((it,) for it in of_family(wanted.node_addresses, family))
        sets[f"internal_sources{number}"] = frozenset((it,) for it in disjoint(wanted.internal_sources, family))
        admitted = {key: it for key, it in wanted.admitted.items() if family_of(key.address) is family}
        sets[f"admitted{number}"] = frozenset((*key, it) for key, ranges in admitted.items() for it in ranges)
        sets[f"restricted{number}"] = frozenset(admitted)
    return sets


def rules_of(wanted: RuleSet) -> dict[str, tuple[Rule, ...]]:
    """The rules of each chain. They depend only on the landing and bind addresses of a rule set, whether it is
    transparent, and whether it guards sockets."""
    remote = {family: wanted.bind.get(family) or wanted.landing.get(family) for family in Family}
    return {
        # Looking for the socket costs time for each packet, so it is done only where needed. An ICMP packet belongs to
        # the socket of the packet that it quotes, as when an endpoint refuses.
        "divert": (
            Rule(
                # Not for packets to this host: accepted sockets are transparent like their listeners, and packets of
                # their clients are to be routed as usual.
                "meta l4proto { tcp, udp, icmp, icmpv6 } socket transparent 1 socket wildcard 0 "
                f"fib daddr type != local meta mark set meta mark | {MARK:#x}",
                "answers to connections from clients' addresses",
            ),
        )
        if wanted.transparent
        else (),
        "prerouting": tuple(
            rule for family in Family for rule in _first_packets(family, remote[family], from_this_host=False)
        ),
        "output": tuple(
            rule for family in Family for rule in _first_packets(family, wanted.bind.get(family), from_this_host=True)
        ),
        # The only rule that packets of running connections meet; its first match ends it for them.
        "input": (
            Rule(
                "ct state new,invalid,untracked meta l4proto . th dport @guarded goto guard",
                "first packets to proxy ports",
            ),
        ),
        "guard": (
            # An untracked packet has no ct status, so the next rule would not match it.
            Rule("ct state invalid,untracked drop", "belongs to no connection"),
            Rule("ct status & dnat == 0 meta l4proto . th dport != @unguarded drop", "came to a proxy port directly"),
            Rule("meta l4proto . th dport @dropped drop", "no local endpoint"),
            Rule("meta l4proto tcp meta l4proto . th dport @refused reject with tcp reset", "no endpoint"),
            Rule("meta l4proto . th dport @refused reject with icmpx port-unreachable", "no endpoint"),
            *(
                (
                    Rule("socket transparent 1 return", "a listener of ours"),
                    # The socket of another program, or none: the next instance answers the client's next attempt.
                    Rule("meta l4proto . th dport != @unguarded drop", "no listener of ours"),
                )
                if wanted.guard_sockets
                else ()
            ),
        ),
    }


def _first_packets(family: Family, to: str | None, *, from_this_host: bool) -> Iterator[Rule]:
    """The rules for first packets in a hook: drop those not admitted, then redirect by the first map that has the
    destination."""
    number = family.value
    ip = "ip" if family is Family.IPV4 else "ip6"
    clients = f"{family} clients on {'this host' if from_this_host else 'other hosts'}"
    own, others = ("", "") if from_this_host else (f"{ip} saddr @internal_sources{number} ", "pods' ")
    on_node = f"{ip} daddr @node_addresses{number} "
    if not from_this_host:
        # Without a redirect the kernel drops such a packet as a martian.
        on_node += f"{ip} daddr != {'127.0.0.0/8' if family is Family.IPV4 else '::1'} "

    def rule(name: str, key: str, condition: str, why: str) -> Rule:
        port = f"{key} map @{name}{number}"
        action = f"redirect to :{port}" if to is None else f"dnat {ip} to {to} : {port}"
        return Rule(f"meta nfproto ipv{number} {condition}meta l4proto {{ tcp, udp }} {action}", f"{clients}{why}")

    address, port = f"{ip} daddr . meta l4proto . th dport", "meta l4proto . th dport"
    yield Rule(
        # A chain of type nat can drop, and it gets first packets only, so running connections cost nothing.
        f"{address} @restricted{number} {address} . {ip} saddr != @admitted{number} drop",
        f"{clients}, from ranges that are not admitted",
    )
    if from_this_host:
        # Before the maps: a dial of the proxy that came back to it would be dialed again.
        yield Rule(
            f"meta nfproto ipv{number} meta mark & {MARK:#x} == {MARK:#x} return", f"{family} dials of the proxy"
        )
    yield rule("own_redirects", address, own, f", {others}own way")
    yield rule("redirects", address, "", "")
    yield rule("own_node_ports", port, own + on_node, f", {others}own way to node ports")
    yield rule("node_ports", port, on_node, ", node ports")


def creation() -> str:
    """The commands that make the table with its empty maps, sets and chains."""
    lines = [f"add table {TABLE}"]
    lines += [
        f"add map {TABLE} {name} {{ type {' . '.join(kind.key)} : inet_service; }}" for name, kind in _MAPS.items()
    ]
    for name, kind in (*_SETS.items(), *_PAUSE_SETS.items()):
        flags = f" flags {kind.flag};" if kind.flag else ""
        lines.append(f"add set {TABLE} {name} {{ type {' . '.join(kind.key)};{flags} }}")
    for chain, hook in _HOOKS.items():
        base = " {{ type {} hook {} priority {}; policy {}; }}".format(*hook) if hook else ""
        lines.append(f"add chain {TABLE} {chain}{base}")
    return "\n".join(lines) + "\n"


DELETION = f"delete table {TABLE}\n"


def difference(have: Table | None, wanted: RuleSet) -> list[str]:
    """The steps of the transaction from one table to the other; none when they are equal.

    The steps are to be sent as one transaction. If that is too large for the kernel they can be sent one by one: guards
    come before the redirects to guarded ports, and an element is replaced within one step.
    """
    steps: list[str] = []
    if have is None or not have.sound:
        steps.append((DELETION if have is not None else "") + creation())
        have = EMPTY
    steps += _chain_steps(have.chains, rules_of(wanted))
    removals: list[str] = []
    for name, new in _sets_of(wanted).items():
        removal = list(_element_steps("delete", name, have.sets[name] - new))
        # A range cannot be added beside one that it overlaps.
        (steps if _SETS[name].ranges else removals).extend(removal)
        steps += _element_steps("add", name, new - have.sets[name])
    steps += _redirect_steps("own_", have.own_redirects, wanted.own_redirects)
    steps += _redirect_steps("", have.redirects, wanted.redirects)
    if have.paused:
        removals.append(_flush(_PAUSE_SETS))
    return steps + removals


def reach(have: Table, ours: RuleSet) -> Reach:
    """The numbers of the table's redirects that belong to a rule set, and of others. Their address is in the rules, and
    their port in the elements."""
    wanted = Table.of(ours)
    same = all(have.chains.get(chain) == wanted.chains[chain] for chain in ("prerouting", "output"))
    redirects = [
        (mine.get(key) == port) and same
        for found, mine in ((have.redirects, ours.redirects), (have.own_redirects, ours.own_redirects))
        for key, port in found.items()
    ]
    return Reach(sum(redirects), len(redirects) - sum(redirects))


def pause(have: Table, *, for_s: float) -> list[str]:
    """The transaction that replaces redirects by drops of first packets, as steps.

    So clients retry instead of being refused, for that time. None without redirects; steps as in `difference`. When the
    time is up, the drops have no effect; the rule that marks answers of endpoints stays."""
    destinations = {*have.redirects, *have.own_redirects}
    if not destinations:
        return []
    steps: list[str] = []
    if have.sound:
        steps.append(_flush(_PAUSE_SETS))
    else:
        steps.append(DELETION + creation())
        for name in _NODE_ADDRESSES:
            steps += _element_steps("add", name, have.sets[name])
    by_set: dict[str, list[str]] = {}
    for key in sorted(destinations):
        name = _map_of(key).replace("redirects", "paused").replace("node_ports", "paused_ports")
        by_set.setdefault(name, []).append(f"{_key(key)} timeout {math.ceil(for_s * 1000)}ms")
    for name, texts in by_set.items():
        steps += _adding("add", name, texts)
    # With the last rule that needs connection tracking the kernel would end it, and every running connection.
    rules = rules_of(RuleSet())
    del rules["divert"]
    rules["prerouting"] = rules["output"] = tuple(_pause_rules())
    chains = have.chains if have.sound else {}
    return [*steps, "".join(_chain_steps(chains, rules)) + _flush({*_MAPS, *_SETS} - _NODE_ADDRESSES)]


def _pause_rules() -> Iterator[Rule]:
    for family in Family:
        ip, number = "ip" if family is Family.IPV4 else "ip6", family.value
        why = f"{family} clients wait for the next proxy"
        yield Rule(f"{ip} daddr . meta l4proto . th dport @paused{number} drop", why)
        yield Rule(
            f"{ip} daddr @node_addresses{number} meta l4proto . th dport @paused_ports{number} drop",
            f"{why}, node ports",
        )


def _flush(names: Iterable[str]) -> str:
    return "".join(f"flush {'map' if name in _MAPS else 'set'} {TABLE} {name}\n" for name in sorted(names))


def _element_steps(verb: str, name: str, elements: Iterable[Element]) -> Iterator[str]:
    return _adding(verb, name, (_text(element) for element in sorted(elements)))


def _adding(verb: str, name: str, texts: Iterable[str]) -> Iterator[str]:
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        yield f"{verb} element {TABLE} {name} {{ {', '.join(chunk)} }}\n"


def _text(element: Element) -> str:
    # Only protocols have capital letters.
    return " . ".join(map(str, element)).lower()


def _chain_steps(have: Mapping[str, tuple[str, ...]], want: Mapping[str, tuple[Rule, ...]]) -> Iterator[str]:
    lines: list[str] = []
    for chain, rules in want.items():
        if have.get(chain) != tuple(rule.comment for rule in rules):
            lines.append(f"flush chain {TABLE} {chain}\n")
            lines += (f'add rule {TABLE} {chain} {rule.text} comment "{rule.comment}"\n' for rule in rules)
    if lines:
        yield "".join(lines)


def _redirect_steps(prefix: str, have: Mapping[Destination, int], want: Mapping[Destination, int]) -> Iterator[str]:
    if have is want:
        return
    by_map: dict[str, list[Destination]] = {}
    for key, port in want.items():
        if have.get(key) != port:
            by_map.setdefault(_map_of(key), []).append(key)
    for key in have:
        if key not in want:
            by_map.setdefault(_map_of(key), []).append(key)
    for name, keys in by_map.items():
        rest = iter(keys)
        while chunk := list(islice(rest, _CHUNK)):
            # The port belongs to the element: without it nft 1.0.6 takes the key alone, newer ones want it equal.
            old = ", ".join(f"{_key(key)} : {have[key]}" for key in chunk if key in have)
            new = ", ".join(f"{_key(key)} : {want[key]}" for key in chunk if key in want)
            yield (f"delete element {TABLE} {prefix}{name} {{ {old} }}\n" if old else "") + (
                f"add element {TABLE} {prefix}{name} {{ {new} }}\n" if new else ""
            )


def _map_of(destination: Destination) -> str:
    number = 6 if ":" in destination.address else 4
    return f"node_ports{number}" if destination.address in _ANY_ADDRESS else f"redirects{number}"


def _key(destination: Destination) -> str:
    return _text(destination[1:] if destination.address in _ANY_ADDRESS else destination)


_ANY_ADDRESS = frozenset(NODE_PORTS.values())
_NODE_ADDRESSES = frozenset(f"node_addresses{family.value}" for family in Family)


# The output of `nft -j list table`, as far as it is used (libnftables-json(5)).


class _Set(msgspec.Struct):
    name: str
    type: Any
    map: Any = None
    elem: Sequence[Any] = ()
    flags: Any = None


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
    """The table in the output of `nft -j list table`; msgspec.MsgspecError when that is no such output."""
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
    kinds = {name: (kind.type, kind.map, kind.flags) for name, kind in sets.items()}
    found = EMPTY
    try:
        # Redirects are read from tables of other versions, too: their clients are paused like our own.
        redirects, own_redirects = _parse_redirects("", sets), _parse_redirects("own_", sets)
        found = replace(EMPTY, redirects=redirects, own_redirects=own_redirects)
        elements = {
            name: frozenset(_parse_element(kind.key, value) for value in sets[name].elem)
            for name, kind in _SETS.items()
        }
        return Table(
            chains={name: tuple(texts) for name, texts in comments.items()},
            redirects=redirects,
            own_redirects=own_redirects,
            sets=elements,
            paused=any(sets[name].elem for name in _PAUSE_SETS if name in sets),
            sound=hooks == _HOOKS and kinds == _KINDS,
        )
    except (KeyError, TypeError, ValueError):
        # We never add elements of another form (with timeouts, comments, counters, other protocols).
        return found


def _parse_redirects(prefix: str, sets: Mapping[str, _Set]) -> dict[Destination, int]:
    found: dict[Destination, int] = {}
    for family in Family:
        for key, port in sets[f"{prefix}redirects{family.value}"].elem:
            address, protocol, number = key["concat"]
            found[Destination(Address(_canonical(address)), _PROTOCOLS[protocol], _port(number))] = _port(port)
        for key, port in sets[f"{prefix}node_ports{family.value}"].elem:
            protocol, number = key["concat"]
            found[Destination(NODE_PORTS[family], _PROTOCOLS[protocol], _port(number))] = _port(port)
    return found


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
    """An address as the model writes it; nft prints the ends of some IPv6 addresses as IPv4 addresses."""
    if not isinstance(address, str):
        raise TypeError(address)
    return str(ipaddress.ip_address(address)) if ":" in address and "." in address else address


def _declared(kind: Kind, leads_to: str | None) -> tuple[Any, ...]:
    return (
        list(kind.key) if len(kind.key) > 1 else kind.key[0],
        leads_to,
        [kind.flag] if kind.flag else None,
    )


_KINDS: Mapping[str, Any] = {
    **{name: _declared(kind, "inet_service") for name, kind in _MAPS.items()},
    **{name: _declared(kind, None) for name, kind in (*_SETS.items(), *_PAUSE_SETS.items())},
}
