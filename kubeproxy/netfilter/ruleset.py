"""The rule set as a value. It is computed as a whole, compared with the rules in the kernel, and applied as one
transaction."""

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
    """A link on which hosts reach one another without this node."""

    number: int
    """The number of this node's interface."""
    interface: str
    """Its name."""
    cidr: str
    """The addresses of its hosts."""

    @property
    def family(self) -> Family:
        """Return IPv4 or IPv6."""
        return Family.IPV6 if ":" in self.cidr else Family.IPV4


class Reach(NamedTuple):
    """How many redirects belong to a rule set, and how many do not."""

    ours: int
    others: int


class ClientHash(NamedTuple):
    """The hash that gives a client its slot: the kernel's jhash."""

    by_port: bool
    """Whether the hash includes the client's port, in addition to its address."""
    seed: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Endpoints among which the kernel spreads new connections by DNAT. All traffic of a frontend shares one value."""

    service_port: str
    """The name of the service port, for comments and for the names of maps."""
    targets: tuple[Target, ...]
    """The endpoints for new connections. Each gets the same share, unless `slots` says otherwise. If it is empty, the
    traffic is treated as if it had no spread."""
    endpoints: tuple[Target, ...]
    """The endpoints at which existing UDP flows may stay: `targets`, and endpoints that get no new flows from the
    kernel."""
    affinity_timeout_s: int | None = None
    """For how many seconds a client stays with its target after its last connection, or None without affinity."""
    scope: Scope = Scope.CLUSTER
    """The scope of the frontend. Clients are remembered separately for each scope, because another scope has other
    endpoints."""
    slots: tuple[Target, ...] = ()
    """The target in each slot if their shares differ. It is empty if each target has one slot."""
    client_hash: ClientHash | None = None
    """The hash that gives a client its slot, or None if the slot is drawn at random. With a hash the slots have this
    order."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A change of nothing but the endpoints to which traffic is led, and of the pods that have a preStop hook."""

    spreads: Mapping[Traffic, Spread | None] = field(default_factory=dict)
    """The spreads of `RuleSet.spreads` that change, with None for one that goes."""
    hairpins: Mapping[Address, bool] = field(default_factory=dict)
    """The addresses that are added to `RuleSet.hairpins` (true) or removed from it (false)."""
    hooks: Mapping[Destination, bool] = field(default_factory=dict)
    """The same for `RuleSet.hooks`. A change from or to no hooks at all takes other rules."""

    def __bool__(self) -> bool:
        return bool(self.spreads or self.hairpins or self.hooks)


class Masquerade(StrEnum):
    """The clients that reach an endpoint from an address of this node, so that answers come back through it."""

    ALWAYS = "always"
    """All clients."""
    OUTSIDE = "outside"
    """Clients that are not in `internal_sources`, as with kube-proxy's clusterCIDR."""
    NODE = "node"
    """Clients on this node itself. The answer to such a client might otherwise go to an address that several nodes
    have."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The wanted rules. With any adapter, equal values lead to equal rules in the kernel."""

    redirects: Mapping[Traffic, int] = field(default_factory=dict)
    """The proxy port of traffic, for packets from other hosts (PREROUTING) and of this node (OUTPUT).

    A destination with an address of `NODE_PORTS` stands for that port on every one of `node_addresses` of its family. A
    packet is of `Origin.NODE` if it is of this node itself, or if it comes from `internal_sources` and not by one of
    `uplinks`.
    """

    internal_sources: frozenset[str] = frozenset()
    """The CIDRs of the cluster's pods, if they are known."""

    uplinks: frozenset[str] = frozenset()
    """The interfaces by which packets of pods on other nodes arrive. Such pods are clients like any other host,
    although their addresses are among `internal_sources`."""

    node_addresses: frozenset[Address] = frozenset()
    """This node's addresses that take node ports, of both families."""

    allowed_sources: Mapping[Destination, frozenset[str]] = field(default_factory=dict)
    """The destinations that only clients from these CIDRs may reach. First packets of other clients are dropped, from
    other hosts and from this node alike. Node ports are never among them."""

    transparent: bool = False
    """Whether endpoints are dialed from clients' addresses, so that their answers need routing to our sockets."""

    guard_sockets: bool = False
    """Whether our listening sockets have IP_TRANSPARENT, by which the kernel recognizes them. A redirected first packet
    is then dropped if the socket that would get it lacks the flag, or if there is no socket. So rules that outlive this
    process never lead a client to another program's socket. (If the sockets lack the flag, nothing is served!)"""

    proxy_ports: frozenset[ProxyPort] = frozenset()
    """The guarded ports. A packet that reaches one without a redirect is dropped."""

    refused: frozenset[ProxyPort] = frozenset()
    """The proxy ports that reject redirected clients (TCP reset, ICMP port unreachable), because there are no
    endpoints."""

    dropped: frozenset[ProxyPort] = frozenset()
    """The proxy ports that drop redirected clients, because the policy is Local and there is no local endpoint."""

    landing: Mapping[Family, Address] = field(default_factory=dict)
    """The node address to which traffic from other hosts is redirected. A family without one uses the address of the
    incoming interface, which fails if that has none (as pods' interfaces under Calico, Cilium and the cloud CNIs). So
    set it whenever the node has an address."""

    bind: Mapping[Family, Address] = field(default_factory=dict)
    """The address on which the proxy ports listen, if it is not the wildcard address. Both hooks redirect to this
    address."""

    spreads: dict[Traffic, Spread] = field(default_factory=dict)
    """The redirected traffic that the kernel leads to endpoints. The redirect of a loopback address applies all the
    same, because the kernel does not forward from there. For each origin the spread comes before the redirect.
    (`rebalance` changes spreads.)"""

    masquerades: Mapping[Destination, Masquerade] = field(default_factory=dict)
    """The destinations of spreads, each with the clients that do not keep their address."""

    rescue: int | None = None
    """The NFLOG group to which failures of spread connections are reported, together with copies of their first
    packets. With None nothing is reported, and clients see failures as they are."""

    tcp_timeouts: Mapping[str, int] = field(default_factory=dict)
    """The conntrack timeouts, in seconds, of TCP connections whose failures are reported (see `rescue`). The keys are
    nft's names of connection states. A state that is not listed gets nft's own default, not the host's setting; only
    ``syn_sent`` gets 1 s."""

    direct_links: frozenset[DirectLink] = frozenset()
    """The links on which hosts reach one another without this node. A client on such a link is masqueraded if the route
    to its endpoint begins on the same link, because otherwise the answer would not come through this node."""

    hairpins: set[Address] = field(default_factory=set)
    """Endpoints that may be clients on this node. An endpoint that reaches itself is masqueraded, because its answer
    would not leave it otherwise."""

    hooks: set[Destination] = field(default_factory=set)
    """The ports of this node's pods at which preStop hooks are answered. What this node itself sends there is
    redirected to `hook_port` on loopback. Packets of other hosts and pods are not."""

    hook_port: int = 0
    """The guarded port of the socket that answers preStop hooks."""

    def spreads_to(self, destination: Destination) -> bool:
        """Return whether a destination that a client names is led to endpoints."""
        node_port = destination._replace(address=NODE_PORTS[family_of(destination.address)])
        places = (destination, node_port) if destination.address in self.node_addresses else (destination,)
        return any(Traffic(place, origin) in self.spreads for place in places for origin in Origin)

    def rebalance(self, change: Rebalance) -> None:
        """Enter a change that is in force, in place. With thousands of Services a copy would cost more than the
        change."""
        for traffic, spread in change.spreads.items():
            if spread is None:
                self.spreads.pop(traffic, None)
            else:
                self.spreads[traffic] = spread
        for address, is_one in change.hairpins.items():
            (self.hairpins.add if is_one else self.hairpins.discard)(address)
        for hook, is_one in change.hooks.items():
            (self.hooks.add if is_one else self.hooks.discard)(hook)

    @property
    def admitted(self) -> dict[Destination, tuple[str, ...]]:
        """Return `allowed_sources` as disjoint ranges of the destination's family. If they admit an address of the
        node, they also admit the destination itself, because a load balancer's address is often given to the node,
        which then connects to it from that very address. (kube-proxy does the same.)"""
        own = frozenset((*self.landing.values(), *self.node_addresses))
        return {key: _admitted(key.address, cidrs, own) for key, cidrs in self.allowed_sources.items()}

    @property
    def unguarded(self) -> frozenset[ProxyPort]:
        """Return the proxy ports that cannot be guarded. A redirect to such a port may leave the packet unchanged,
        because the Service has the same port number on an address of this node. Then the packet looks like one sent to
        the proxy port. This never applies to a node port that a socket holds. It may apply to an external address that
        the node owns."""
        own = {*self.node_addresses, *self.landing.values(), *self.bind.values(), *NODE_PORTS.values()}
        return frozenset(
            ProxyPort(destination.protocol, port)
            for (destination, _), port in self.redirects.items()
            if destination.port == port and destination.address in own
        )

    @property
    def guarded(self) -> frozenset[ProxyPort]:
        """Return every proxy port that has a guard, including those only in `refused` or `dropped`."""
        hook = {ProxyPort(Protocol.TCP, self.hook_port)} if self.hooks else frozenset()
        return self.proxy_ports | self.refused | self.dropped | hook


def part(rules: RuleSet, destinations: Set[Destination]) -> RuleSet:
    """Return the part of a rule set that decides where packets to these destinations go."""
    traffic = [Traffic(destination, origin) for destination in destinations for origin in Origin]

    def of(mapping: Mapping[_Key, _Value], keys: Iterable[_Key]) -> dict[_Key, _Value]:
        return {key: mapping[key] for key in keys if key in mapping}

    return RuleSet(
        redirects=of(rules.redirects, traffic),
        internal_sources=rules.internal_sources,
        uplinks=rules.uplinks,
        node_addresses=rules.node_addresses,
        allowed_sources=of(rules.allowed_sources, destinations),
        landing=rules.landing,
        bind=rules.bind,
        spreads=of(rules.spreads, traffic),
    )


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@lru_cache(maxsize=1 << 14)
def _admitted(address: Address, cidrs: frozenset[str], own: frozenset[Address]) -> tuple[str, ...]:
    family = family_of(address)
    if any(family_of(it) is family and not is_loopback(it) and contains(cidrs, it) for it in own):
        cidrs |= {address}
    return disjoint(cidrs, family)
