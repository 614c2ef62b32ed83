"""Declares the maps, sets and base chains of our nftables table.

Chains of spreads, and chains and maps of session affinity, come and go. Everything else is static, apart from some
rules that exist only if a destination needs them. So changes in the cluster mostly change only elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kubeproxy.model import NODE_PORTS, Destination, Family, Origin, Protocol

TABLE = "inet kubeproxy"

VERDICT, PORT, ENDPOINT, HOST = "verdict", "inet_service", "endpoint", "host"
"""The kinds of values: a jump to a chain, a proxy port, the address and port of an endpoint, and an address."""


class Kind(NamedTuple):
    """The declaration of a map or set: the types of its key and value, and whether its elements have address ranges or
    expire."""

    key: tuple[str, ...]
    ranges: bool = False
    expires: bool = False
    value: str | None = None
    """The kind of a map's values (`VERDICT`, `PORT`, `ENDPOINT` or `HOST`), or None for a set."""
    family: Family = Family.IPV4
    protocol: Protocol | None = None
    """The protocol, if this is a map of slots."""
    origin: Origin = Origin.ANYWHERE

    learned: bool = False
    """Whether rules add elements to it."""
    counted: bool = False
    """Whether each element counts the packets that look it up. In a nat chain each such packet begins a connection."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of the declaration, in nft's order."""
        held = {"interval": self.ranges, "timeout": self.expires, "dynamic": self.learned}
        return tuple(name for name, on in held.items() if on)

    @property
    def is_map(self) -> bool:
        """Return whether this is a map, whose elements have values."""
        return self.value is not None

    @property
    def declaration(self) -> str:
        """Return the declaration in nft's syntax, without braces."""
        flags = f" flags {','.join(self.flags)};" if self.flags else ""
        flags += f" size {CLIENTS_LIMIT};" if self.learned else ""
        flags += " counter;" if self.counted else ""
        if self.value == ENDPOINT:
            # The type of a slot number has no name, so all types are given as expressions. An expression for a port
            # names the protocol, and the types have to be the same in each rule that uses the map. So there is a map
            # for each protocol.
            address, port = f"{IP[self.family]} daddr", f"{self.protocol} dport".lower()
            names = {ADDRESS[self.family]: address, "inet_service": port, _SLOT: "numgen random mod 2"}
            return f"typeof {' . '.join(names[each] for each in self.key)} : {address} . {port};{flags}"
        value = f" : {self._value_type}" if self.value else ""
        return f"type {' . '.join(self.key)}{value};{flags}"

    @property
    def listed(self) -> tuple[Any, ...]:
        """Return the declaration's types, value and flags in the form of `nft -j`."""
        flags = [flag for flag in self.flags if flag != "dynamic"]
        return (list(self.key) if len(self.key) > 1 else self.key[0], self._value_type, flags or None)

    @property
    def _value_type(self) -> str | None:
        address = ADDRESS[self.family]
        return {ENDPOINT: f"{address} . inet_service", HOST: address}.get(self.value or "", self.value)


ADDRESS = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}
IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
CLIENTS_LIMIT = 1 << 16
"""The largest number of clients in one map of a service port. Further clients have no affinity."""

_PORT = ("inet_proto", "inet_service")
_SLOT = "integer"


def _by_destination(name: str, node_ports: str, value: str | None, *, counted: bool = False) -> dict[str, Kind]:
    """Return the declarations of one map or set for each family, with addresses in its keys, and of one for node
    ports."""
    kinds: dict[str, Kind] = {}
    for family in Family:
        kinds[f"{name}{family.value}"] = Kind((ADDRESS[family], *_PORT), value=value, family=family, counted=counted)
        kinds[f"{node_ports}{family.value}"] = Kind(_PORT, value=value, family=family, counted=counted)
    return kinds


def _by_traffic(name: str, node_ports: str, value: str | None, *, counted: bool = False) -> dict[str, Kind]:
    """Return the declarations of such maps or sets for each origin of traffic."""
    kinds = _by_destination(name, node_ports, value, counted=counted)
    return {PREFIX[origin] + name: kind._replace(origin=origin) for origin in Origin for name, kind in kinds.items()}


PREFIX = {Origin.NODE: "own_", Origin.ANYWHERE: ""}
"""The prefix of the names of maps and sets, by origin of the traffic."""


REDIRECTS: Mapping[str, Kind] = _by_traffic("redirects", "node_ports", PORT)
"""The maps from destinations to proxy ports."""

SPREADS: Mapping[str, Kind] = _by_traffic("spreads", "node_port_spreads", VERDICT, counted=True)
"""The maps from destinations to the chains that choose one of their slots."""

SLOTS: Mapping[str, Kind] = {
    f"{PREFIX[origin]}{node_port}{protocol.lower()}_slots{family.value}": Kind(
        (*(() if node_port else (ADDRESS[family],)), "inet_service", _SLOT),
        value=ENDPOINT,
        family=family,
        protocol=protocol,
        origin=origin,
    )
    for origin in Origin
    for node_port in ("", "node_port_")
    for protocol in (Protocol.TCP, Protocol.UDP)
    for family in Family
}
"""The maps from the numbered slots of destinations to endpoints."""

VERDICTS: Mapping[str, Kind] = {
    **_by_traffic("affinities", "node_port_affinities", VERDICT, counted=True),
    **_by_destination("learned", "node_port_learned", VERDICT),
    **_by_destination("masquerades", "node_port_masquerades", VERDICT),
}
"""The other maps of verdicts: for destinations with session affinity, the chains that look up a client's endpoint and
that store it; for masqueraded destinations, the chains that masquerade."""

SETS: Mapping[str, Kind] = {
    "guarded": Kind(_PORT),
    "unguarded": Kind(_PORT),
    "refused": Kind(_PORT),
    "dropped": Kind(_PORT),
    **{f"node_addresses{family.value}": Kind((ADDRESS[family],)) for family in Family},
    **{f"internal_sources{family.value}": Kind((ADDRESS[family],), ranges=True) for family in Family},
    **{f"admitted{family.value}": Kind((ADDRESS[family], *_PORT, ADDRESS[family]), ranges=True) for family in Family},
    **{f"restricted{family.value}": Kind((ADDRESS[family], *_PORT)) for family in Family},
    **{f"hairpins{family.value}": Kind((ADDRESS[family], ADDRESS[family])) for family in Family},
    **{f"hooks{family.value}": Kind((ADDRESS[family], *_PORT)) for family in Family},
    **_by_destination("translated", "translated_node_ports", None),
    **_by_traffic("refusals", "node_port_refusals", None),
}
"""The sets, in the order in which elements are added: the sources admitted to a destination come before its
restriction. `translated` has the destinations with a spread, and `refusals` those that are redirected to a port in
`refused`."""

PAUSE_SETS: Mapping[str, Kind] = {
    **{f"paused{family.value}": Kind((ADDRESS[family], *_PORT), expires=True) for family in Family},
    **{f"paused_ports{family.value}": Kind(_PORT, expires=True) for family in Family},
}
"""The destinations whose first packets are dropped during a pause. At any other time the sets are empty."""

KINDS: Mapping[str, Kind] = {**REDIRECTS, **SPREADS, **SLOTS, **VERDICTS, **SETS, **PAUSE_SETS}
"""All static maps and sets."""

CLIENTS = {family: Kind((ADDRESS[family],), expires=True, value=HOST, family=family, learned=True) for family in Family}
"""A map from a service port's clients to the addresses of their endpoints. There is one for each scope and for each
port of the endpoints, because a rule cannot add both address and port of an IPv6 endpoint (nft 1.0.6)."""

# These priorities are five before the usual ones: our redirects come before other NAT tables (hostports, Docker), and
# refusals are sent before a host firewall could drop the packet. "divert" sets marks before the packet is routed. The
# priorities are numbers, because nft knows the name "dstnat" only in some hooks.
HOOKS: Mapping[str, tuple[str, str, int, str] | None] = {
    "prerouting": ("nat", "prerouting", -105, "accept"),
    "output": ("nat", "output", -105, "accept"),
    "input": ("filter", "input", -5, "accept"),
    "postrouting": ("nat", "postrouting", 95, "accept"),
    "arrived": ("nat", "input", 95, "accept"),
    "guard": None,
    "refuse": None,
    "masquerade_always": None,
    "masquerade_node": None,
    "masquerade_links": None,
    **{f"masquerade_outside{family.value}": None for family in Family},
    **{f"masquerade_link{family.value}": None for family in Family},
}
"""The static chains with their hooks. A chain without a hook has None."""

DIVERT = "divert"
"""A chain that exists only while it has a rule, because even an empty chain takes time for each packet."""
DIVERT_HOOK = ("filter", "prerouting", -150, "accept")
"""The hook of `DIVERT`, which sets marks before the packet is routed."""


def creation() -> str:
    """Return the commands that create the table with its empty maps, sets and chains."""
    lines = [f"add table {TABLE}"]
    lines += [
        f"add {'map' if kind.is_map else 'set'} {TABLE} {name} {{ {kind.declaration} }}" for name, kind in KINDS.items()
    ]
    lines += [chain_creation(chain, hook) for chain, hook in HOOKS.items()]
    return "\n".join(lines) + "\n"


def chain_creation(chain: str, hook: tuple[str, str, int, str] | None) -> str:
    """Return the command that creates a chain."""
    base = " {{ type {} hook {} priority {}; policy {}; }}".format(*hook) if hook else ""
    return f"add chain {TABLE} {chain}{base}"


def place(destination: Destination, name: str, origin: Origin = Origin.ANYWHERE) -> str:
    """Return the name of the map or set of this kind to which a destination belongs, for traffic of an origin."""
    prefix = PREFIX[origin]
    number = 6 if ":" in destination.address else 4
    if destination.address not in _ANY_ADDRESS:
        return f"{prefix}{name}{number}"
    return f"{prefix}{_OF_NODE_PORTS.get(name) or f'node_port_{name}'}{number}"


_ANY_ADDRESS = frozenset(NODE_PORTS.values())
_OF_NODE_PORTS = {"redirects": "node_ports", "translated": "translated_node_ports", "paused": "paused_ports"}
