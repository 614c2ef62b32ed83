"""Address blocks, asked for every endpoint: a set of CIDRs that answers within a microsecond."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from socket import AF_INET, AF_INET6, inet_pton

from kubeproxy.model import Address


@dataclass(frozen=True, slots=True)
class CidrSet:
    """Canonical CIDRs of both families; empty: no address at all."""

    cidrs: frozenset[str] = frozenset()
    _hosts: frozenset[str] = field(init=False, repr=False, compare=False)
    """CidrSet of one address."""
    _networks: tuple[Mapping[int, frozenset[int]], Mapping[int, frozenset[int]]] = field(
        init=False, repr=False, compare=False
    )
    """The other blocks, of IPv4 and of IPv6: netmask -> network addresses."""

    def __post_init__(self) -> None:
        """Sort them for lookups. Raise ValueError for what is no CIDR."""
        hosts: set[str] = set()
        networks: tuple[dict[int, set[int]], dict[int, set[int]]] = ({}, {})
        for cidr in self.cidrs:
            network = ipaddress.ip_network(cidr)
            if network.num_addresses == 1:
                hosts.add(str(network.network_address))
            else:
                starts = networks[network.version == 6].setdefault(int(network.netmask), set())
                starts.add(int(network.network_address))
        four, six = ({mask: frozenset(starts) for mask, starts in found.items()} for found in networks)
        object.__setattr__(self, "_hosts", frozenset(hosts))
        object.__setattr__(self, "_networks", (four, six))

    def __contains__(self, address: Address) -> bool:
        """Return whether an address lies in one of the blocks."""
        if address in self._hosts:
            return True
        six = ":" in address
        networks = self._networks[six]
        if not networks:
            return False
        # Three times as fast as ipaddress, thirty times by IPv6.
        number = int.from_bytes(inet_pton(AF_INET6 if six else AF_INET, address), "big")
        return any(number & mask in starts for mask, starts in networks.items())


NO_BLOCKS = CidrSet()
"""No address at all."""
