"""Computes with address ranges (CIDRs): makes them disjoint, and searches them for an address."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kubeproxy.model import Address, Family


@lru_cache(maxsize=1 << 14)
def disjoint(cidrs: frozenset[str], family: Family) -> tuple[str, ...]:
    """Return the CIDRs of one family as the fewest disjoint ranges, in canonical form and order.

    A range of a single address is written without prefix length, as tools do. Raise ValueError for an invalid CIDR."""
    networks: list[Any] = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs if (":" in cidr) is (family == 6)]
    return tuple(
        str(network[0] if network.num_addresses == 1 else network) for network in ipaddress.collapse_addresses(networks)
    )


@lru_cache(maxsize=1 << 14)
def contains(cidrs: frozenset[str], address: Address) -> bool:
    """Return whether one of the CIDRs contains an address."""
    it = ipaddress.ip_address(address)
    return any(it in ipaddress.ip_network(cidr, strict=False) for cidr in cidrs)


def is_loopback(address: Address) -> bool:
    """Return whether this is a loopback address."""
    return address.startswith("127.") or address == "::1"


def of_family(addresses: Iterable[Address], family: Family) -> list[Address]:
    """Return the addresses of one family, sorted."""
    return sorted(address for address in addresses if (":" in address) is (family == 6))
