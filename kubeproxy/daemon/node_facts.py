"""Computes the facts about this node from the configuration, the Node object and the kernel."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable

from kubeproxy.config.schema import Configuration
from kubeproxy.model import Address, Family, Node, family_of
from kubeproxy.netfilter.direct_links import direct_links
from kubeproxy.netfilter.local_addresses import LocalAddress
from kubeproxy.proxier.node import NodeFacts, Preserve

LOCALHOST = (Address("127.0.0.1"), Address("::1"))


def node_of(configuration: Configuration, name: str, described: Node | None) -> Node:
    """Return the Node object, completed from the configuration if the host has none."""
    own = configuration.kubeproxy
    node = described or Node(name)
    return Node(
        name=name,
        addresses=node.addresses or tuple(ip.address for ip in own.node_addresses),
        pod_cidrs=node.pod_cidrs,
        zone=node.zone or own.node_zone,
        eligible=node.eligible,
    )


def node_facts(
    configuration: Configuration,
    node: Node,
    local: Iterable[LocalAddress],
    *,
    can_preserve: bool,
    landing: Iterable[Address] = (),
    forwarding: frozenset[Family] = frozenset(),
    bridged: frozenset[Family] = frozenset(),
) -> NodeFacts:
    """Return the facts for the proxier.

    `local` has every address of this host, and `landing` the addresses to which clients are redirected. `can_preserve`
    is true if the kernel lets us dial from clients' addresses. `forwarding` has the families that the kernel forwards,
    and `bridged` the families whose bridged frames pass through netfilter.
    """
    local = list(local)
    own = [address.address for address in local if not address.address.startswith("fe80:")]
    pods = node.pod_cidrs if configuration.detect_local_mode == "NodeCIDR" else ()
    pods = pods or configuration.cluster_cidr.blocks
    return NodeFacts(
        name=node.name,
        zone=node.zone,
        node_addresses=frozenset(node_port_addresses(configuration, node, own)),
        own_addresses=frozenset(own),
        internal_sources=frozenset(pods),
        uplinks=uplinks({*node.addresses, *landing}, local, pods),
        direct_links=direct_links(local, bridged),
        forwarding=forwarding,
        preserve=Preserve(configuration.kubeproxy.preserve_client_address) if can_preserve else Preserve.NEVER,
    )


def uplinks(known: Container[Address], local: Iterable[LocalAddress], pods: Iterable[str]) -> frozenset[str]:
    """Return the interfaces that have an address by which other hosts know this node (`known`). Of all pods, only those
    of other nodes send packets through these interfaces.

    If pods have addresses of the node's own network, such an interface cannot be told apart, and is not returned.
    """
    cidrs = [ipaddress.ip_network(cidr) for cidr in pods]
    return frozenset(
        it.interface
        for it in local
        if cidrs and it.address in known and not (it.network and _overlaps(it.network, cidrs))
    )


def _overlaps(network: str, cidrs: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    its = ipaddress.ip_network(network)
    return any(its.version == cidr.version and its.overlaps(cidr) for cidr in cidrs)


def node_port_addresses(configuration: Configuration, node: Node, own: Iterable[Address]) -> set[Address]:
    """Return the addresses of this host that serve node ports (kube-proxy's nodePortAddresses)."""
    own = list(own)
    # If IPv6 is disabled, the host has no ::1.
    loopback = {address for address in LOCALHOST if address in own}
    taken: set[Address] = set()
    for word in configuration.node_port_addresses or ("all",):
        if word == "all":
            taken.update(address for address in own if not _is_loopback(address))
            if configuration.iptables.localhost_node_ports:
                taken.update(loopback)
        elif word == "localhost":
            taken.update(loopback)
        elif word == "primary":
            taken.update(_primary(node.addresses or own))
        else:
            network = ipaddress.ip_network(word, strict=False)
            taken.update(address for address in own if ipaddress.ip_address(address) in network)
    return taken


def _primary(addresses: Iterable[Address]) -> Iterable[Address]:
    """Return the first address of each family."""
    first: dict[Family, Address] = {}
    for address in addresses:
        if not _is_loopback(address):
            first.setdefault(family_of(address), address)
    return first.values()


def _is_loopback(address: Address) -> bool:
    return address.startswith("127.") or address == "::1"
