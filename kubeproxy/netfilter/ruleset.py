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
        """IPv4 or IPv6."""
        return Family.IPV6 if ":" in self.cidr else Family.IPV4


class Reach(NamedTuple):
    """The number of redirects that belong to a rule set, and of others."""

    ours: int
    others: int


class ClientHash(NamedTuple):
    """The hash by which a client has its slot: the kernel's jhash."""

    by_port: bool
    """Whether the client's port counts in addition to its address."""
    seed: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Endpoints among which the kernel spreads new connections by DNAT. All traffic of a frontend shares one value."""

    service_port: str
    """Its name, for comments and for the names of maps."""
    targets: tuple[Target, ...]
    """The endpoints for new connections. Each gets the same share, unless `slots` says otherwise. If it is empty,
    the traffic is treated as if it had no spread."""
    endpoints: tuple[Target, ...]
    """The endpoints at which UDP flows that lead there already may stay: `targets`, and endpoints that get no new flows
    from the kernel."""
    affinity_timeout_s: int | None = None
    """For how many seconds a client stays with its target after its last connection, or None without affinity."""
    scope: Scope = Scope.CLUSTER
    """The scope of the frontend. Clients are remembered for each scope by itself, because another scope has other
    endpoints."""
    slots: tuple[Target, ...] = ()
    """The target in each slot if their shares differ. Empty if each target has one slot."""
    client_hash: ClientHash | None = None
    """The hash by which a client has its slot, or None if the slot is drawn at random. With a hash the slots have this
    order."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A change of the endpoints to which traffic is led, and of nothing else."""

    spreads: Mapping[Traffic, Spread | None] = field(default_factory=dict)
    """The spreads of `RuleSet.spreads` that change, with None for one that goes."""
    hairpins: Mapping[Address, bool] = field(default_factory=dict)
    """The addresses that are in `RuleSet.hairpins` from now on (true), or no longer (false)."""

    def __bool__(self) -> bool:
        return bool(self.spreads or self.hairpins)


class Masquerade(StrEnum):
    """The clients that reach an endpoint from an address of this node, so that answers come back through it."""

    ALWAYS = "always"
    """All clients."""
    OUTSIDE = "outside"
    """Clients that are not in `internal_sources`, as with kube-proxy's clusterCIDR."""
    NODE = "node"
    """Clients on this node itself. The answer to one might otherwise go to an address that several nodes have."""


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
    """Whether our listening sockets have IP_TRANSPARENT, by which the kernel knows them: then a redirected first packet
    is dropped where the socket that would get it lacks the flag, or where there is no socket. So rules that outlive
    this process never lead a client to another program's socket. (Without the flag on the sockets nothing is
    served!)"""

    proxy_ports: frozenset[ProxyPort] = frozenset()
    """The guarded ports. A packet that reaches one without a redirect is dropped."""

    refused: frozenset[ProxyPort] = frozenset()
    """The proxy ports that reject redirected clients (TCP reset, ICMP port unreachable), because there are no
    endpoints."""

    dropped: frozenset[ProxyPort] = frozenset()
    """The proxy ports that drop redirected clients, because the policy is Local and there is no local endpoint."""

    landing: Mapping[Family, Address] = field(default_factory=dict)
    """Node address to which traffic from other hosts is redirected. A family without one uses the address of the
    incoming interface, which fails where that has none (as pods' interfaces under Calico, Cilium and the cloud
    CNIs): give one wherever the node has an address."""

    bind: Mapping[Family, Address] = field(default_factory=dict)
    """Where the proxy ports listen, if not on the wildcard address. Both hooks redirect to this address."""

    spreads: dict[Traffic, Spread] = field(default_factory=dict)
    """Redirected traffic that the kernel leads to endpoints. The redirect of a loopback address applies all the same,
    because the kernel does not forward from there. For each origin the spread comes before the redirect. (`rebalance`
    changes spreads.)"""

    masquerades: Mapping[Destination, Masquerade] = field(default_factory=dict)
    """Spread destinations, each with the clients that do not keep their address."""

    rescue: int | None = None
    """The NFLOG group to which failures of spread connections are reported, together with copies of their first
    packets. With None nothing is reported, and clients see failures as they are."""

    tcp_timeouts: Mapping[str, int] = field(default_factory=dict)
    """For how long the kernel keeps a connection that is reported if it fails, in seconds, by nft's name of its state.
    Of states without one nft sets its own default, whatever the host's settings are."""

    direct_links: frozenset[DirectLink] = frozenset()
    """If a client is on such a link, and the route to its endpoint begins on the same link, the client is masqueraded.
    Otherwise the answer would not come through this node."""

    hairpins: set[Address] = field(default_factory=set)
    """Endpoints that may be clients on this node. An endpoint that reaches itself is masqueraded, because its answer
    would not leave it otherwise."""

    hooks: frozenset[Destination] = frozenset()
    """Ports of this node's pods at which preStop hooks are answered: what this node itself sends there is redirected to
    `hook_port` on loopback. Nothing of other hosts and pods is."""

    hook_port: int = 0
    """The guarded port of that socket."""

    def spreads_to(self, destination: Destination) -> bool:
        """Return whether a destination, as a client names it, is led to endpoints."""
        node_port = destination._replace(address=NODE_PORTS[family_of(destination.address)])
        places = (destination, node_port) if destination.address in self.node_addresses else (destination,)
        return any(Traffic(place, origin) in self.spreads for place in places for origin in Origin)

    def rebalance(self, change: Rebalance) -> None:
        """Enter a change that is in force. In place: a copy would cost more than the change, with thousands of
        Services."""
        for traffic, spread in change.spreads.items():
            if spread is None:
                self.spreads.pop(traffic, None)
            else:
                self.spreads[traffic] = spread
        for address, is_one in change.hairpins.items():
            (self.hairpins.add if is_one else self.hairpins.discard)(address)

    @property
    def admitted(self) -> dict[Destination, tuple[str, ...]]:
        """`allowed_sources`, as disjoint ranges of the destination's family. If they admit an address of the node, they
        also admit the destination itself: a load balancer's address is often given to the node, which then connects to
        it from that very address. (kube-proxy does the same.)"""
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
        """Return every proxy port with a check, including those only in `refused` or `dropped`."""
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
