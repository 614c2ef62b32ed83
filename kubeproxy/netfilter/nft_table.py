"""Our nftables table as a value: what is wanted, what the kernel has, and the transaction between the two. Pure.

Chains, maps and sets are static; everything that changes with the cluster is an element, so that the cost of a packet
and of a change stays the same however many services there are. ``docs/netfilter.md`` shows the table as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from kubeproxy.model import Destination, Family, Protocol
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet

TABLE = "inet kubeproxy"

_MAPS = {
    "redirects4": ["ipv4_addr", "inet_proto", "inet_service"],
    "redirects6": ["ipv6_addr", "inet_proto", "inet_service"],
}
_SETS = ("guarded", "refused", "dropped")
_SET_TYPE = ["inet_proto", "inet_service"]

# Five before the usual priorities: service addresses are ours before another NAT table (hostports, Docker) can take
# the packet, and a refusal is said before a host firewall could swallow it. Numbers, because nft knows the name
# "dstnat" in some hooks only.
_HOOKS: Mapping[str, tuple[str, str, int, str] | None] = {
    "prerouting": ("nat", "prerouting", -105, "accept"),
    "output": ("nat", "output", -105, "accept"),
    "input": ("filter", "input", -5, "accept"),
    "guard": None,
}

_CHUNK = 1000
"""Elements of one step: small enough for the netlink buffer of an unprivileged user namespace."""

_PROTOCOLS = {"tcp": Protocol.TCP, "udp": Protocol.UDP, "sctp": Protocol.SCTP}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it says, and the comment by which we recognize it."""

    text: str
    why: str

    @property
    def comment(self) -> str:
        """Its reason and a digest of its text. Rules are compared by it: how nft prints them back differs from
        version to version."""
        return f"{self.why} #{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Table:
    """The table, wanted or found."""

    chains: Mapping[str, tuple[str, ...]]
    """The comments of each chain's rules, in order."""
    redirects: Mapping[Destination, int]
    guarded: frozenset[ProxyPort]
    refused: frozenset[ProxyPort]
    dropped: frozenset[ProxyPort]
    sound: bool = True
    """Whether its maps, sets and chains are as this version declares them; otherwise the table is made anew."""

    @classmethod
    def of(cls, wanted: RuleSet) -> Table:
        """The table that does what a rule set says."""
        return cls(
            chains={chain: tuple(rule.comment for rule in rules) for chain, rules in rules_of(wanted).items()},
            redirects=wanted.redirects,
            guarded=wanted.guarded,
            refused=wanted.refused,
            dropped=wanted.dropped,
        )


EMPTY = Table(chains={}, redirects={}, guarded=frozenset(), refused=frozenset(), dropped=frozenset(), sound=False)


def rules_of(wanted: RuleSet) -> dict[str, tuple[Rule, ...]]:
    """The rules of each chain; of a rule set only its landing and bind addresses show here."""
    remote = {family: wanted.bind.get(family) or wanted.landing.get(family) for family in Family}
    return {
        "prerouting": tuple(
            _redirection(family, remote[family], f"{family} clients on other hosts") for family in Family
        ),
        "output": tuple(
            _redirection(family, wanted.bind.get(family), f"{family} clients on this host") for family in Family
        ),
        # The only rule that packets of running connections meet; it ends at its first match for them.
        "input": (
            Rule(
                "ct state new,invalid,untracked meta l4proto . th dport @guarded goto guard",
                "first packets to proxy ports",
            ),
        ),
        "guard": (
            # An untracked packet has no ct status to look at, so the next rule would not see it.
            Rule("ct state invalid,untracked drop", "belongs to no connection"),
            Rule("ct status & dnat == 0 drop", "came to a proxy port directly"),
            Rule("meta l4proto . th dport @dropped drop", "no local endpoint"),
            Rule("meta l4proto tcp meta l4proto . th dport @refused reject with tcp reset", "no endpoint"),
            Rule("meta l4proto . th dport @refused reject with icmpx port-unreachable", "no endpoint"),
        ),
    }


def _redirection(family: Family, to: str | None, why: str) -> Rule:
    ip, netfilter_family = ("ip", "ipv4") if family is Family.IPV4 else ("ip6", "ipv6")
    port = f"{ip} daddr . meta l4proto . th dport map @redirects{family.value}"
    action = f"redirect to :{port}" if to is None else f"dnat {ip} to {to} : {port}"
    return Rule(f"meta nfproto {netfilter_family} meta l4proto {{ tcp, udp }} {action}", why)


def creation() -> str:
    """Commands that make the table with its maps, sets and chains, all of them empty."""
    lines = [f"add table {TABLE}"]
    lines += [f"add map {TABLE} {name} {{ type {' . '.join(key)} : inet_service; }}" for name, key in _MAPS.items()]
    lines += [f"add set {TABLE} {name} {{ type {' . '.join(_SET_TYPE)}; }}" for name in _SETS]
    for chain, hook in _HOOKS.items():
        base = " {{ type {} hook {} priority {}; policy {}; }}".format(*hook) if hook else ""
        lines.append(f"add chain {TABLE} {chain}{base}")
    return "\n".join(lines) + "\n"


DELETION = f"delete table {TABLE}\n"


def difference(have: Table | None, wanted: RuleSet) -> list[str]:
    """The transaction that turns one table into the other, as steps; none when they are equal.

    The steps are meant to be sent as one. Where that is too much for the kernel they can be sent one by one: guards
    come before what they guard, and what is replaced is replaced within its step.
    """
    steps: list[str] = []
    if have is None or not have.sound:
        steps.append((DELETION if have is not None else "") + creation())
        have = EMPTY
    steps += _chain_steps(have.chains, rules_of(wanted))
    sets = [(name, getattr(have, name), getattr(wanted, name)) for name in _SETS]
    for name, old, new in sets:
        steps += (f"add element {TABLE} {name} {{ {text} }}\n" for text in _chunks(_ports(new - old)))
    steps += _redirect_steps(have.redirects, wanted.redirects)
    for name, old, new in sets:
        steps += (f"delete element {TABLE} {name} {{ {text} }}\n" for text in _chunks(_ports(old - new)))
    return steps


def _chain_steps(have: Mapping[str, tuple[str, ...]], want: Mapping[str, tuple[Rule, ...]]) -> Iterator[str]:
    lines: list[str] = []
    for chain, rules in want.items():
        if have.get(chain) != tuple(rule.comment for rule in rules):
            lines.append(f"flush chain {TABLE} {chain}\n")
            lines += (f'add rule {TABLE} {chain} {rule.text} comment "{rule.comment}"\n' for rule in rules)
    if lines:
        yield "".join(lines)


def _redirect_steps(have: Mapping[Destination, int], want: Mapping[Destination, int]) -> Iterator[str]:
    if have is want:
        return
    changed = [key for key, port in want.items() if have.get(key) != port]
    gone = [key for key in have if key not in want]
    for name in _MAPS:
        mark = name == "redirects6"
        keys = iter([key for key in (*changed, *gone) if (":" in key.address) is mark])
        while chunk := list(islice(keys, _CHUNK)):
            # The port belongs to the element: without it nft 1.0.6 takes the key alone, newer ones want it equal.
            old = ", ".join(f"{_key(key)} : {have[key]}" for key in chunk if key in have)
            new = ", ".join(f"{_key(key)} : {want[key]}" for key in chunk if key in want)
            yield (f"delete element {TABLE} {name} {{ {old} }}\n" if old else "") + (
                f"add element {TABLE} {name} {{ {new} }}\n" if new else ""
            )


def _key(destination: Destination) -> str:
    return f"{destination.address} . {destination.protocol.lower()} . {destination.port}"


def _ports(ports: Iterable[ProxyPort]) -> Iterator[str]:
    return (f"{port.protocol.lower()} . {port.port}" for port in sorted(ports))


def _chunks(texts: Iterator[str]) -> Iterator[str]:
    while chunk := list(islice(texts, _CHUNK)):
        yield ", ".join(chunk)


# What `nft -j list table` prints, to the fields in use (libnftables-json(5)).


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
        """Where it hooks in; None for a chain that others jump to."""
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
    """The table as `nft -j list table` prints it; msgspec.MsgspecError when that is not what nft prints."""
    items = _decoder.decode(listing).nftables
    sets = {kind.name: kind for item in items if (kind := item.set or item.map) is not None}
    hooks = {chain.name: chain.base for item in items if (chain := item.chain) is not None}
    comments: dict[str, list[str]] = {name: [] for name in hooks}
    for item in items:
        if item.rule is not None:
            comments.setdefault(item.rule.chain, []).append(item.rule.comment)
    kinds = {name: (kind.type, kind.map, kind.flags) for name, kind in sets.items()}
    if hooks != _HOOKS or kinds != _KINDS:
        return EMPTY
    try:
        return Table(
            chains={name: tuple(texts) for name, texts in comments.items()},
            redirects={
                Destination(address, _PROTOCOLS[protocol], port): proxy_port
                for name in _MAPS
                for (address, protocol, port), proxy_port in ((key["concat"], value) for key, value in sets[name].elem)
            },
            guarded=_parse_ports(sets["guarded"].elem),
            refused=_parse_ports(sets["refused"].elem),
            dropped=_parse_ports(sets["dropped"].elem),
        )
    except (KeyError, TypeError, ValueError):
        # Elements of another shape (with timeouts, comments, counters, foreign protocols) were never added by us.
        return EMPTY


def _parse_ports(elements: Iterable[Any]) -> frozenset[ProxyPort]:
    return frozenset(
        ProxyPort(_PROTOCOLS[protocol], port) for protocol, port in (element["concat"] for element in elements)
    )


_KINDS: Mapping[str, Any] = {
    **{name: (key, "inet_service", None) for name, key in _MAPS.items()},
    **dict.fromkeys(_SETS, (_SET_TYPE, None, None)),
}
