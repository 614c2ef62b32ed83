"""IP addresses as canonical text.

They are strings and not ``ipaddress`` objects, because sockets, nft and people use text, and strings are small and fast
to hash and compare. Every address comes from `parse_address`, so equal addresses are equal strings.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import NewType

Address = NewType("Address", str)
"""An IPv4 or IPv6 address in canonical form (RFC 5952). It has no zone and is not an IPv4-mapped IPv6 address."""


class Family(IntEnum):
    """An IP family. The value is the version number of the protocol."""

    IPV4 = 4
    IPV6 = 6

    def __str__(self) -> str:
        return f"IPv{self.value}"


def parse_address(text: str) -> Address:
    """Return the canonical form of an IP address. Raise ValueError if the text is not an address, has a zone, or is an
    IPv4-mapped IPv6 address."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"{text!r} carries a zone, which has no meaning in a Service")
        if address.ipv4_mapped is not None:
            raise ValueError(f"{text!r} is an IPv4-mapped IPv6 address; write {address.ipv4_mapped}")
    return Address(str(address))


def family_of(address: Address) -> Family:
    """Return the family of a canonical address."""
    return Family.IPV6 if ":" in address else Family.IPV4
