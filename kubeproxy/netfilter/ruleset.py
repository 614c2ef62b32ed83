"""The rule set as a value, and changes of it. Both are applied as one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Family,
    Origin,
    Protocol,
    Scope,
    Target,
    Traffic,
    family_of,
)
from kubeproxy.netfilter.cidr import contains, disjoint, is_loopback


class ProxyPort(NamedTuple):
    """A port on which the data plane listens."""

    protocol: Protocol
    port: int


class DirectLink(NamedTuple):
    """A link on which hosts reach one another without passing through this node."""

    number: int
    """The number of this node's interface on the link."""
    interface: str
    """The name of that interface."""
    cidr: str
    """The CIDR of the link's hosts."""

    @property
    def family(self) -> Family:
        """Return the link's family, IPv4 or IPv6."""
        return Family.IPV6 if ":" in self.cidr else Family.IPV4


class Reach(NamedTuple):
    """Counts of redirects in the kernel: those that belong to a rule set, and others."""

    ours: int
    others: int


class ClientHash(NamedTuple):
    """How a hash (the kernel's jhash) selects a client's slot."""

    by_port: bool
    """Whether the hash includes the client's port, in addition to its address."""
    seed: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Endpoints among which the kernel distributes new connections by DNAT. All traffic of a frontend shares one
    value."""

    service_port: str
    """The name of the service port, for comments and names of maps."""
    targets: tuple[Target, ...]
    """The endpoints for new connections, with equal shares unless `slots` says otherwise. If it is empty, the traffic
    is handled as if it had no spread."""
    endpoints: tuple[Target, ...]
    """The endpoints with which existing UDP flows may continue: `targets`, and endpoints that get no new flows."""
    affinity_timeout_s: int | None = None
    """For how many seconds after its last connection a client keeps its target, or None without affinity."""
    scope: Scope = Scope.CLUSTER
    """The scope of the frontend. Session affinity is separate for each scope, because other scopes have other
    endpoints."""
    slots: tuple[Target, ...] = ()
    """The target in each slot, if the shares differ. It is empty if each target has one slot."""
    client_hash: ClientHash | None = None
    """The hash that selects a client's slot, or None if the slot is random. With a hash, the order of slots matters."""


class Masquerade(StrEnum):
    """Which clients reach an endpoint from an address of this node, so that answers return through this node."""

    ALWAYS = "always"
    """All clients of the destination."""
    OUTSIDE = "outside"
    """Clients outside of `internal_sources`, as with kube-proxy's clusterCIDR."""
    NODE = "node"
    """Clients on this node itself. Without masquerading the answer might go to an address that several nodes have."""


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of some destinations, proxy ports and pods, in a rule set that otherwise stays as it is.

    Each mapping has values after the change, with None or false for what goes. A value may be the one before.
    """

    spreads: Mapping[Traffic, Spread | None] = field(default_factory=dict)
    """The changed spreads of `RuleSet.spreads`."""
    hairpins: Mapping[Address, bool] = field(default_factory=dict)
    """The addresses that are added to `RuleSet.hairpins` (true) or removed from it (false)."""
    hooks: Mapping[Destination, bool] = field(default_factory=dict)
    """The destinations that are added to `RuleSet.hooks` (true) or removed from it (false). Adding the first hook, or
    removing the last one, needs other rules and is not done in this way."""
    redirects: Mapping[Traffic, int | None] = field(default_factory=dict)
    """The redirects that change, and all redirects to the ports in `proxy_ports`, `refused` and `dropped`."""
    allowed_sources: Mapping[Destination, frozenset[str] | None] = field(default_factory=dict)
    masquerades: Mapping[Destination, Masquerade | None] = field(default_factory=dict)
    proxy_ports: Mapping[ProxyPort, bool] = field(default_factory=dict)
    """The ports that are added to `RuleSet.proxy_ports` or removed from it."""
    refused: Mapping[ProxyPort, bool] = field(default_factory=dict)
    dropped: Mapping[ProxyPort, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.spreads or self.hairpins or self.hooks or not self.only_endpoints)

    @property
    def only_endpoints(self) -> bool:
        """Return whether nothing changes but the endpoints to which traffic is sent, and the pods that have a preStop
        hook."""
        others = (self.redirects, self.allowed_sources, self.masquerades, self.ports)
        return not any(others)

    @property
    def ports(self) -> set[ProxyPort]:
        """Return the proxy ports that change."""
        return {*self.proxy_ports, *self.refused, *self.dropped}


@dataclass(slots=True)
class RuleSet:
    """The wanted rules, or those in force, which only `enter` changes. An adapter makes equal rules in the kernel for
    equal values."""

    redirects: dict[Traffic, int] = field(default_factory=dict)
    """The proxy port for traffic, both from other hosts (PREROUTING) and from this node (OUTPUT).

    A destination with an address of `NODE_PORTS` means this port on each of the `node_addresses` of its family. A
    packet has `Origin.NODE` if this node sends it, or if its source is in `internal_sources` and it does not arrive on
    one of `uplinks`.
    """

    internal_sources: frozenset[str] = frozenset()
    """The CIDRs of the cluster's pods, or empty if they are not known."""

    uplinks: frozenset[str] = frozenset()
    """The interfaces on which packets of pods on other nodes arrive. Such pods are treated like other hosts, although
    their addresses are in `internal_sources`."""

    node_addresses: frozenset[Address] = frozenset()
    """This node's addresses that serve node ports, of both families."""

    allowed_sources: dict[Destination, frozenset[str]] = field(default_factory=dict)
    """The destinations with a restriction, each with the CIDRs of the allowed clients. First packets of other clients
    are dropped, whether they are on other hosts or on this node. Node ports are never restricted."""

    transparent: bool = False
    """Whether endpoints are dialed from clients' addresses, so that their answers need routing to our sockets."""

    guard_sockets: bool = False
    """Whether our listening sockets have IP_TRANSPARENT, by which the kernel recognizes them. A redirected first packet
    is then dropped if the socket for it lacks this option, or if there is no socket. So rules that outlive this process
    never send a client to another program's socket. (If the sockets lack the flag, nothing is served!)"""

    proxy_ports: set[ProxyPort] = field(default_factory=set)
    """The guarded ports. A packet that reaches such a port without a redirect is dropped."""

    refused: set[ProxyPort] = field(default_factory=set)
    """The proxy ports that reject redirected clients (TCP reset, ICMP port unreachable), because there are no
    endpoints."""

    dropped: set[ProxyPort] = field(default_factory=set)
    """The proxy ports that drop redirected clients, because the policy is Local and there is no local endpoint."""

    landing: Mapping[Family, Address] = field(default_factory=dict)
    """The node address to which traffic from other hosts is redirected. For a family without one, the address of the
    incoming interface is used, which fails if that has none (as pods' interfaces under Calico, Cilium and cloud CNIs).
    So set this whenever the node has an address."""

    bind: Mapping[Family, Address] = field(default_factory=dict)
    """The address on which the proxy ports listen, if it is not the wildcard address. Then all traffic is redirected to
    this address."""

    spreads: dict[Traffic, Spread] = field(default_factory=dict)
    """The redirected traffic that the kernel sends to endpoints instead. For each origin, the spread takes precedence
    over the redirect, except for packets to a loopback address, because the kernel does not forward those."""

    masquerades: dict[Destination, Masquerade] = field(default_factory=dict)
    """The clients that are masqueraded, for each destination with a spread."""

    rescue: int | None = None
    """The NFLOG group for reports of failed connections to endpoints, and for copies of their first packets. With None
    nothing is reported, and clients see failures as they are."""

    tcp_timeouts: Mapping[str, int] = field(default_factory=dict)
    """The conntrack timeouts, in seconds, of TCP connections whose failures are reported (see `rescue`). The keys are
    nft's names of connection states. A state that is not listed gets nft's own default, not the host's setting; only
    ``syn_sent`` gets 1 s."""

    direct_links: frozenset[DirectLink] = frozenset()
    """The links on which hosts reach one another without this node. A client on such a link is masqueraded if the route
    to its endpoint uses the same link, because otherwise the answer would not return through this node."""

    hairpins: set[Address] = field(default_factory=set)
    """The endpoints that may be clients on this node. A connection from such an endpoint to itself is masqueraded,
    because otherwise its answer would not return through this node."""

    hooks: set[Destination] = field(default_factory=set)
    """The ports of this node's pods at which preStop hooks are answered. Packets from this node itself to these
    destinations are redirected to `hook_port` on loopback; packets from other hosts and pods are not."""

    hook_port: int = 0
    """The guarded port of the socket that answers preStop hooks."""

    service_changes: int = field(default=0, compare=False)
    """How often `enter` has changed more than endpoints."""

    def spreads_to(self, destination: Destination) -> bool:
        """Return whether clients of a destination are sent to endpoints."""
        node_port = destination._replace(address=NODE_PORTS[family_of(destination.address)])
        places = (destination, node_port) if destination.address in self.node_addresses else (destination,)
        return any(Traffic(place, origin) in self.spreads for place in places for origin in Origin)

    def enter(self, change: RuleChange) -> None:
        """Record a change that is in force. With thousands of Services, another rule set would cost more than the
        change."""
        _update(self.spreads, change.spreads)
        _update_set(self.hairpins, change.hairpins)
        _update_set(self.hooks, change.hooks)
        if not change.only_endpoints:
            _update(self.redirects, change.redirects)
            _update(self.allowed_sources, change.allowed_sources)
            _update(self.masquerades, change.masquerades)
            _update_set(self.proxy_ports, change.proxy_ports)
            _update_set(self.refused, change.refused)
            _update_set(self.dropped, change.dropped)
            self.service_changes += 1

    @property
    def admitted(self) -> dict[Destination, tuple[str, ...]]:
        """Return `allowed_sources` as disjoint ranges of the destination's family. If they allow an address of the
        node, the destination itself is added to them: a load balancer's address is often assigned to the node, which
        then connects to it from that same address. (kube-proxy does the same.)"""
        own = frozenset((*self.landing.values(), *self.node_addresses))
        return {key: _admitted(key.address, cidrs, own) for key, cidrs in self.allowed_sources.items()}

    @property
    def unguarded(self) -> frozenset[ProxyPort]:
        """Return the proxy ports that cannot be guarded. If a Service has the same port number as its proxy port at an
        address of this node, the redirect may leave the packet unchanged. It then looks like a packet sent to the proxy
        port directly. This cannot happen with a node port that a socket holds, but it can with an external address that
        the node owns."""
        return self.unguarded_by(self.redirects)

    def unguarded_by(self, redirects: Mapping[Traffic, int]) -> frozenset[ProxyPort]:
        """Return the proxy ports that these redirects alone make unguarded."""
        own = {*self.node_addresses, *self.landing.values(), *self.bind.values(), *NODE_PORTS.values()}
        return frozenset(
            ProxyPort(destination.protocol, port)
            for (destination, _), port in redirects.items()
            if destination.port == port and destination.address in own
        )

    @property
    def guarded(self) -> Set[ProxyPort]:
        """Return every proxy port with a guard, including those that are only in `refused` or `dropped`."""
        hook = {ProxyPort(Protocol.TCP, self.hook_port)} if self.hooks else frozenset()
        return self.proxy_ports | self.refused | self.dropped | hook


def part(rules: RuleSet, change: RuleChange) -> RuleSet:
    """Return the part of a rule set that decides about packets to the destinations and ports of a change."""
    traffic = {**change.redirects, **change.spreads}
    destinations = {destination: None for destination, _ in traffic}

    def of(mapping: Mapping[_Key, _Value], keys: Iterable[_Key]) -> dict[_Key, _Value]:
        return {key: mapping[key] for key in keys if key in mapping}

    everywhere = [Traffic(destination, origin) for destination in destinations for origin in Origin]
    return RuleSet(
        redirects=of(rules.redirects, everywhere),
        internal_sources=rules.internal_sources,
        uplinks=rules.uplinks,
        node_addresses=rules.node_addresses,
        allowed_sources=of(rules.allowed_sources, destinations),
        proxy_ports=change.ports & rules.proxy_ports,
        refused=change.ports & rules.refused,
        dropped=change.ports & rules.dropped,
        landing=rules.landing,
        bind=rules.bind,
        spreads=of(rules.spreads, everywhere),
    )


def _update(mapping: dict[_Key, _Value], change: Mapping[_Key, _Value | None]) -> None:
    for key, value in change.items():
        if value is None:
            mapping.pop(key, None)
        else:
            mapping[key] = value


def _update_set(members: set[_Key], change: Mapping[_Key, bool]) -> None:
    for key, is_one in change.items():
        (members.add if is_one else members.discard)(key)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@lru_cache(maxsize=1 << 14)
def _admitted(address: Address, cidrs: frozenset[str], own: frozenset[Address]) -> tuple[str, ...]:
    family = family_of(address)
    if any(family_of(it) is family and not is_loopback(it) and contains(cidrs, it) for it in own):
        cidrs |= {address}
    return disjoint(cidrs, family)
