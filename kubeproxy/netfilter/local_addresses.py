"""Reads the node's own addresses, and finds those to which traffic is redirected.

They are read through rtnetlink (rtnetlink(7), RTM_GETADDR, RTM_GETLINK), which needs no privilege.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kubeproxy.model import Address, Family, parse_address
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.netlink.messages import IFF_UP, LINK, attributes, dump, open_netlink

_RTM_GETLINK, _RTM_GETADDR = 18, 22
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFLA_IFNAME, _IFLA_LINKINFO = 3, 18
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_IFLA_BR_NF_CALL = {Family.IPV4: 36, Family.IPV6: 37}  # IFLA_BR_NF_CALL_IPTABLES, _IP6TABLES
_TWO_ENDS = 0x8 | 0x10 | 0x80  # IFF_LOOPBACK, IFF_POINTOPOINT, IFF_NOARP
_RT_SCOPE_UNIVERSE = 0
_UNUSABLE = 0x40 | 0x08 | 0x20  # IFA_F_TENTATIVE, IFA_F_DADFAILED, IFA_F_DEPRECATED

_IFADDR = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface

_INET = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_ELSEWHERE = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849), which only the default route matches."""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """An address of this node."""

    address: Address
    interface: str
    is_global: bool
    """Whether the address has global scope. Loopback and link-local addresses do not."""
    usable: bool
    """Whether the address's interface is up, and the kernel would choose the address for new connections."""
    network: str | None = None
    """The prefix shared by all hosts on the address's link, as a CIDR, or None if the link has only two ends."""
    number: int = 0
    """The number of the address's interface."""
    bridge: frozenset[Family] | None = None
    """If the interface is a bridge: the families for which it passes frames through netfilter. Otherwise None."""

    @property
    def family(self) -> Family:
        """Return the family, by the form of the address."""
        return Family.IPV6 if ":" in self.address else Family.IPV4


def local_addresses() -> tuple[LocalAddress, ...]:
    """Return every address in this network namespace, in the kernel's order. Raise KernelError if the kernel
    refuses."""
    try:
        with open_netlink() as netlink:
            links = dict(_parse_links(dump(netlink, _RTM_GETLINK)))
            return tuple(_parse_addresses(dump(netlink, _RTM_GETADDR), links))
    except OSError as error:
        raise KernelError(f"cannot list the node's addresses by netlink: {error.strerror}") from error


def landing_addresses() -> Mapping[Family, Address]:
    """Return the node address of each family for `RuleSet.landing`: the source address of the default route, or else
    the first usable global address. A family without such an address is missing."""
    found = {family: _source_of_default_route(family) for family in Family}
    if None in found.values():
        addresses = local_addresses()
        found = {family: address or first_global(addresses, family) for family, address in found.items()}
    return {family: address for family, address in found.items() if address is not None}


def first_global(addresses: Iterable[LocalAddress], family: Family) -> Address | None:
    """Return the first usable global address of a family, or None."""
    return next((it.address for it in addresses if it.family is family and it.is_global and it.usable), None)


def _source_of_default_route(family: Family) -> Address | None:
    try:
        with socket.socket(_INET[family], socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            # Connecting a datagram socket only looks up a route. No packet is sent.
            probe.connect((_ELSEWHERE[family], 9))
            address = parse_address(probe.getsockname()[0].partition("%")[0])
    except OSError:  # There is no such route, or it prohibits the destination, or the kernel lacks the family.
        return None
    return address if not address.startswith(("127.", "fe80:")) and address not in ("0.0.0.0", "::", "::1") else None


class _Link(NamedTuple):
    """A network interface."""

    name: str
    is_up: bool
    has_hosts: bool
    """Whether the link may have more than two hosts."""
    bridge: frozenset[Family] | None


def _parse_links(payloads: Iterable[bytes]) -> Iterator[tuple[int, _Link]]:
    """Yield the interfaces by their numbers."""
    for payload in payloads:
        _, _, index, flags, _ = LINK.unpack_from(payload)
        found = dict(attributes(payload[LINK.size :]))
        name = found.get(_IFLA_IFNAME, str(index).encode()).rstrip(b"\0").decode(errors="replace")
        kind = dict(attributes(found.get(_IFLA_LINKINFO, b"")))
        yield index, _Link(name, bool(flags & IFF_UP), not flags & _TWO_ENDS, _bridge(kind))


def _network(packed: bytes, prefix: int) -> str:
    return str(ipaddress.ip_network((packed, prefix), strict=False))


def _bridge(link: Mapping[int, bytes]) -> frozenset[Family] | None:
    """Return the families for which a bridge passes frames through netfilter by its own setting, or None if the
    interface is no bridge."""
    if link.get(_IFLA_INFO_KIND, b"").rstrip(b"\0") != b"bridge":
        return None
    settings = dict(attributes(link.get(_IFLA_INFO_DATA, b"")))
    return frozenset(family for family, number in _IFLA_BR_NF_CALL.items() if any(settings.get(number, b"")))


def _parse_addresses(payloads: Iterable[bytes], links: Mapping[int, _Link]) -> Iterator[LocalAddress]:
    for payload in payloads:
        inet, prefix, short_flags, scope, index = _IFADDR.unpack_from(payload)
        if inet not in (socket.AF_INET, socket.AF_INET6):
            continue
        found = dict(attributes(payload[_IFADDR.size :]))
        # On a point-to-point link IFA_ADDRESS is the other end.
        packed = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
        if packed is None:
            continue
        flags = int.from_bytes(found[_IFA_FLAGS], sys.byteorder) if _IFA_FLAGS in found else short_flags
        link = links.get(index, _Link(str(index), is_up=False, has_hosts=False, bridge=None))
        yield LocalAddress(
            address=Address(str(ipaddress.ip_address(packed))),
            interface=link.name,
            is_global=scope == _RT_SCOPE_UNIVERSE,
            usable=link.is_up and not flags & _UNUSABLE,
            network=_network(found.get(_IFA_ADDRESS, packed), prefix) if link.has_hosts else None,
            number=index,
            bridge=link.bridge,
        )
