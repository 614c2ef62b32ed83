"""The rule set as a value: computed whole, compared with what the kernel has, applied as one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Protocol, family_of
from kubeproxy.netfilter.cidr import contains, disjoint, is_loopback


class ProxyPort(NamedTuple):
    """A port on which the data plane listens."""

    protocol: Protocol
    port: int


class Reach(NamedTuple):
    """The number of redirects that belong to a rule set, and of others."""

    ours: int
    others: int


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The wanted rules. Equal values mean equal kernels, with any adapter."""

    redirects: Mapping[Destination, int] = field(default_factory=dict)
    """Service address -> proxy port, for packets from other hosts (PREROUTING) and of this node (OUTPUT). A destination
    with an address of `NODE_PORTS` stands for that port on every one of `node_addresses` of its family."""

    own_redirects: Mapping[Destination, int] = field(default_factory=dict)
    """The same, but only for packets of this node itself, and for those from `internal_sources`; wins over
    `redirects`."""

    internal_sources: frozenset[str] = frozenset()
    """CIDRs of the cluster's pods, if known."""

    node_addresses: frozenset[Address] = frozenset()
    """This node's addresses that take node ports, of both families."""

    allowed_sources: Mapping[Destination, frozenset[str]] = field(default_factory=dict)
    """Destinations that only clients from these CIDRs may reach; first packets of other clients are dropped, from other
    hosts and from this node alike. Not for node ports."""

    transparent: bool = False
    """Whether endpoints are dialed from clients' addresses, so that their answers need routing to our sockets."""

    guard_sockets: bool = False
    """Whether our listening sockets have IP_TRANSPARENT, by which the kernel knows them: then a redirected first packet
    is dropped where the socket that would get it lacks the flag, or where there is no socket. So rules that outlive
    this process never lead a client to another program's socket. (Without the flag on the sockets nothing is
    served!)"""

    proxy_ports: frozenset[ProxyPort] = frozenset()
    """Guarded ports: a packet that reaches one without a redirect is dropped."""

    refused: frozenset[ProxyPort] = frozenset()
    """Proxy ports whose redirected clients are refused (TCP reset, ICMP port unreachable): no endpoints."""

    dropped: frozenset[ProxyPort] = frozenset()
    """Proxy ports whose redirected clients are dropped: policy Local, and no local endpoint."""

    landing: Mapping[Family, Address] = field(default_factory=dict)
    """Node address to which traffic from other hosts is redirected. A family without one uses the address of the
    incoming interface, which fails where that has none (as pods' interfaces under Calico, Cilium and the cloud
    CNIs): give one wherever the node has an address."""

    bind: Mapping[Family, Address] = field(default_factory=dict)
    """Where the proxy ports listen, if not on the wildcard address: both hooks redirect there."""

    @property
    def admitted(self) -> dict[Destination, tuple[str, ...]]:
        """`allowed_sources`, as disjoint ranges of the destination's family. If they admit an address of the node, they
        also admit the destination itself: a load balancer's address is often given to the node, which then connects to
        it from that very address. (kube-proxy does the same.)"""
        own = frozenset((*self.landing.values(), *self.node_addresses))
        return {key: _admitted(key.address, cidrs, own) for key, cidrs in self.allowed_sources.items()}

    @property
    def unguarded(self) -> frozenset[ProxyPort]:
        """Proxy ports that cannot be guarded. A redirect to them may leave the packet unchanged, because the Service
        has the same port number on an address of this node; then it looks like a packet sent to the proxy port. A
        node port that is held by a socket never is one; an external address that is the node's own may be."""
        own = {*self.node_addresses, *self.landing.values(), *self.bind.values(), *NODE_PORTS.values()}
        return frozenset(
            ProxyPort(key.protocol, port)
            for redirects in (self.redirects, self.own_redirects)
            for key, port in redirects.items()
            if key.port == port and key.address in own
        )

    @property
    def guarded(self) -> frozenset[ProxyPort]:
        """Every proxy port with a check: also those only in `refused` or `dropped`."""
        return self.proxy_ports | self.refused | self.dropped


@lru_cache(maxsize=1 << 14)
def _admitted(address: Address, cidrs: frozenset[str], own: frozenset[Address]) -> tuple[str, ...]:
    family = family_of(address)
    if any(family_of(it) is family and not is_loopback(it) and contains(cidrs, it) for it in own):
        cidrs |= {address}
    return disjoint(cidrs, family)
