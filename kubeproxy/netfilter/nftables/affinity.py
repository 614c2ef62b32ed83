"""Makes the rules of session affinity: maps from clients to their endpoints, and the chains that use and fill the maps.

A service port has a map for each port of its endpoints, in each family and scope. Rules add clients to the maps. The
kernel removes a client that has not begun a connection within the timeout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from kubeproxy.model import Address, Destination, Family, Scope, Traffic, family_of
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import IP, place
from kubeproxy.netfilter.nftables.dynamic_chains import LONGEST, UNUSUAL
from kubeproxy.netfilter.nftables.elements import by_origin
from kubeproxy.netfilter.nftables.rules import Rule, from_own_pods
from kubeproxy.netfilter.ruleset import Spread


def affinity_name(spread: Spread, family: Family) -> str:
    """Return the common part of the names of a service port's affinity chains and client maps, for one family and
    scope."""
    name = spread.service_port.replace(":", "/")
    if UNUSUAL.search(name) or len(name) > LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{UNUSUAL.sub('_', name)[:LONGEST]}_{digest}"
    # A dot cannot be confused with the names, because no name of a Service or of a port has one.
    scope = "" if spread.scope is Scope.CLUSTER else f".{spread.scope}"
    return f"{family.value}-{name}{scope}"


def affinity_chains(
    spreads: Mapping[Traffic, Spread], *, rescued: bool, uplinks: frozenset[str] = frozenset()
) -> dict[str, tuple[Rule, ...]]:
    """Return the chains of all service ports with session affinity.

    Each service port has a chain that sends a known client to its endpoint, and one that stores the endpoint of a
    client or renews its timeout. With `rescued`, failed connections are reported.
    """
    chains: dict[str, tuple[Rule, ...]] = {}
    found = {it.name: it for it in affinities(spreads)}
    # Sort by name: a chain may jump only to one that exists already, and that one has the shorter name.
    for name, family, ports, timeout_s, internal in sorted(found.values()):
        ip = IP[family]
        chains[f"sticky{name}"] = (
            # This copies the SYN of a known client. For other clients, the next chain copies it.
            *((Rule(*rescue.copying(family)),) if rescued else ()),
            *(
                Rule(
                    f"meta l4proto {{ tcp, udp }} dnat {ip} to {ip} saddr map @{clients_map(name, port)} : {port}",
                    f"to the client's endpoint at port {port}",
                )
                for port in ports
            ),
        )
        # For an existing element, `update` only renews the timeout.
        chains[f"learn{name}"] = (
            *(_own_clients(family, f"learn{internal}", uplinks) if internal in found else ()),
            *(
                Rule(
                    f"th dport {port} update @{clients_map(name, port)} "
                    f"{{ ct original {ip} saddr timeout {timeout_s}s : {ip} daddr }}",
                    f"endpoints at port {port}, for {timeout_s} s",
                )
                for port in ports
            ),
        )
    return chains


def _own_clients(family: Family, chain: str, uplinks: frozenset[str]) -> Iterator[Rule]:
    """Yield the rules that send clients on this node (its pods and the host itself) to a chain of their own.

    Under externalTrafficPolicy Local, clients on this node may use the endpoints of all nodes, and other clients only
    those of this node.
    """
    ip = IP[family]
    own = from_own_pods(f"ct original {ip} saddr", family, uplinks)
    yield Rule(f"{own}goto {chain}", "pods have their own way")
    yield Rule(f"fib saddr type local goto {chain}", "this host has its own way")


class Affinity(NamedTuple):
    """A service port with session affinity, in one family and scope."""

    name: str
    family: Family
    ports: tuple[int, ...]
    """The ports of its endpoints."""
    timeout_s: int
    internal: str | None
    """The name used for clients on this node, if they have other endpoints than other clients of the same
    destinations."""


def affinities(spreads: Mapping[Traffic, Spread]) -> Iterator[Affinity]:
    """Yield the service ports with session affinity, each once."""
    found: dict[tuple[str, Family], tuple[set[int], int, str | None]] = {}
    seen: set[tuple[int, Family]] = set()
    for (destination, _), spread in spreads.items():
        family = family_of(destination.address)
        if spread.affinity_timeout_s is None or (id(spread), family) in seen:
            continue
        seen.add((id(spread), family))
        internal = (
            affinity_name(replace(spread, scope=Scope.CLUSTER), family) if spread.scope is Scope.EXTERNAL else None
        )
        ports, *_ = found.setdefault(
            (affinity_name(spread, family), family), (set(), spread.affinity_timeout_s, internal)
        )
        ports.update(target.port for target in spread.endpoints)
    for (name, family), (ports, timeout_s, internal) in found.items():
        if ports:
            yield Affinity(name, family, tuple(sorted(ports)), timeout_s, internal)


def clients_map(name: str, port: int) -> str:
    """Return the name of the map from clients to endpoints. A service port has one such map for each port of its
    endpoints."""
    return f"clients{name}-{port}"


def affinity_verdicts(spreads: Mapping[Traffic, Spread]) -> dict[tuple[str, Destination], str]:
    """Return the jumps for session affinity: the chain for each map and destination.

    Traffic without a target has no jump, so its clients reach the redirect.
    """
    sticky = [
        (traffic, affinity_name(spread, family_of(traffic.destination.address)))
        for traffic, spread in spreads.items()
        if spread.affinity_timeout_s is not None and spread.targets
    ]
    verdicts: dict[tuple[str, Destination], str] = {}
    # The map `learned` has one jump for both origins, to the chain for clients from anywhere. That chain sends clients
    # on this node to their own chain.
    for (destination, origin), name in sorted(sticky, key=by_origin):
        verdicts[place(destination, "affinities", origin), destination] = f"sticky{name}"
        verdicts[place(destination, "learned"), destination] = f"learn{name}"
    return verdicts


def clients_in(spreads: Mapping[Traffic, Spread]) -> frozenset[str]:
    """Return the names of the client maps that these spreads need."""
    return frozenset(clients_map(it.name, port) for it in affinities(spreads) for port in it.ports)


def clients_of(spreads: Mapping[Traffic, Spread]) -> dict[str, frozenset[Address]]:
    """Return the client maps, each with the addresses of endpoints that it may contain."""
    found: dict[str, set[Address]] = {
        clients_map(it.name, port): set() for it in affinities(spreads) for port in it.ports
    }
    for (destination, _), spread in spreads.items():
        if spread.affinity_timeout_s is not None:
            name = affinity_name(spread, family_of(destination.address))
            for target in spread.targets:
                found[clients_map(name, target.port)].add(target.address)
    return {name: frozenset(addresses) for name, addresses in found.items()}
