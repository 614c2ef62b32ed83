"""Ranges of addresses (CIDRs): made disjoint, asked whether they hold an address. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kubeproxy.model import Address, Family


@lru_cache(maxsize=1 << 14)
def disjoint(cidrs: frozenset[str], family: Family) -> tuple[str, ...]:
    """Those of one family in canonical form and order, the fewest that hold the same addresses and no other, so that
    none overlaps another. A single address stands without a prefix length, as tools print it. ValueError for what is
    no CIDR."""
    networks: list[Any] = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs if (":" in cidr) is (family == 6)]
    return tuple(
        str(network[0] if network.num_addresses == 1 else network) for network in ipaddress.collapse_addresses(networks)
    )


@lru_cache(maxsize=1 << 14)
def hold(cidrs: frozenset[str], address: Address) -> bool:
    """Whether one of these holds an address."""
    it = ipaddress.ip_address(address)
    return any(it in ipaddress.ip_network(cidr, strict=False) for cidr in cidrs)


def is_loopback(address: Address) -> bool:
    """Whether this is an address that means the host itself, on whatever host."""
    return address.startswith("127.") or address == "::1"


def of_family(addresses: Iterable[Address], family: Family) -> list[Address]:
    """Those of one family, in order."""
    return sorted(address for address in addresses if (":" in address) is (family == 6))
