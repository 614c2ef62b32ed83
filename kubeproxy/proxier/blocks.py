"""Address blocks, asked for every endpoint: a set of CIDRs that answers in well under a microsecond. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kubeproxy.model import Address, Family, family_of


class _Table(NamedTuple):
    """The blocks, sorted for lookups."""

    hosts: frozenset[str]
    """Blocks of one address."""
    networks: Mapping[Family, Mapping[int, frozenset[int]]]
    """The other blocks of each family: netmask -> network addresses."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Canonical CIDRs of both families; empty: no address at all."""

    cidrs: frozenset[str] = frozenset()

    def __contains__(self, address: Address) -> bool:
        """Whether an address lies in one of the blocks."""
        table = _table(self.cidrs)
        if address in table.hosts:
            return True
        networks = table.networks[family_of(address)]
        if not networks:
            return False
        number = int(ipaddress.ip_address(address))
        return any(number & mask in starts for mask, starts in networks.items())


NO_BLOCKS = Blocks()
"""No address at all."""


@lru_cache(maxsize=16)
def _table(cidrs: frozenset[str]) -> _Table:
    hosts: set[str] = set()
    networks: dict[Family, dict[int, set[int]]] = {family: {} for family in Family}
    for cidr in cidrs:
        network = ipaddress.ip_network(cidr)
        if network.num_addresses == 1:
            hosts.add(str(network.network_address))
        else:
            starts = networks[Family(network.version)].setdefault(int(network.netmask), set())
            starts.add(int(network.network_address))
    return _Table(
        frozenset(hosts),
        {family: {mask: frozenset(starts) for mask, starts in found.items()} for family, found in networks.items()},
    )
