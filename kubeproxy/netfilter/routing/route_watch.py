"""Watches for lost routes, through the kernel's notifications.

A packet without a route is dropped before it reaches a chain that knows the endpoint, so the rules of the rescue do not
see it.

If an IPv4 route disappears together with its link, its source address or its next hop (``ip nexthop``), there is no
notification of the route (seen with ``ip monitor``, Linux 6.18). This happens when a pod ends. The endpoint may then
still match a less specific route that does not reach it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Container, Iterator
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink.messages import IFF_UP, LINK, attributes, parse
from kubeproxy.netfilter.netlink.multicast import received, subscribe

# linux/rtnetlink.h: RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE,
# RTNLGRP_NEXTHOP
_GROUPS = (1, 5, 7, 11, 32)
_RTM_NEWLINK, _RTM_DELLINK, _RTM_DELADDR, _RTM_NEWROUTE, _RTM_DELROUTE = 16, 17, 21, 24, 25
_RTM_DELNEXTHOP = 105
_NEW = 0xFFFF_FFFF  # This value means that the link has just been created.
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # family, lengths of addresses, type of service, table, protocol, scope, type; flags
_RTA_DST = 1
_BLACKHOLE, _UNREACHABLE, _PROHIBIT = 6, 7, 8  # RTN_*

Prefix = IPv4Network | IPv6Network
_LISTED = 4096
"""How many addresses of small prefixes `within` expands to a set of texts. Larger prefixes are compared as numbers."""


class Lost(NamedTuple):
    """The routes lost since the last call of `look`."""

    prefixes: set[Prefix]
    """The destinations that have lost a route."""
    more: bool
    """Whether further routes may have been lost without a notification."""


class RouteWatch:
    """A subscription to the routes and links in this network namespace."""

    def __init__(self) -> None:
        """Subscribe. Raise OSError if the kernel has no such notifications."""
        self._socket = subscribe(socket.NETLINK_ROUTE, *_GROUPS)

    def look(self) -> Lost:
        """Return the routes lost since the last call. The kernel notifies of a removed link before it removes the
        routes through the link."""
        lost = Lost(set(), more=False)
        for data in received(self._socket):
            more = data is None or hides_losses(data)
            lost = Lost(lost.prefixes | set(lost_ways(data or b"")), lost.more or more)
        return lost

    def close(self) -> None:
        """End the subscription."""
        self._socket.close()


def lost_ways(data: bytes) -> Iterator[Prefix]:
    """Yield the destinations of removed routes, and of new routes that discard packets."""
    for message in parse(data):
        if message.kind not in (_RTM_NEWROUTE, _RTM_DELROUTE) or len(message.body) < _ROUTE.size:
            continue
        family, length, *_, kind, _ = _ROUTE.unpack_from(message.body)
        if message.kind == _RTM_NEWROUTE and kind not in (_BLACKHOLE, _UNREACHABLE, _PROHIBIT):
            continue
        to = next((value for name, value in attributes(message.body[_ROUTE.size :]) if name == _RTA_DST), b"")
        if family == socket.AF_INET and length <= 32 and len(to) in (0, 4):
            yield IPv4Network((to.ljust(4, b"\0"), length), strict=False)
        elif family == socket.AF_INET6 and length <= 128 and len(to) in (0, 16):
            yield IPv6Network((to.ljust(16, b"\0"), length), strict=False)


def hides_losses(data: bytes) -> bool:
    """Return whether the messages say that a link went down, or that an address or next hop was removed."""
    for message in parse(data):
        if message.kind in (_RTM_DELLINK, _RTM_DELADDR, _RTM_DELNEXTHOP):
            return True
        if message.kind == _RTM_NEWLINK and len(message.body) >= LINK.size:
            *_, flags, change = LINK.unpack_from(message.body)
            if change & IFF_UP and not flags & IFF_UP and change != _NEW:
                return True
    return False


def within(prefixes: Collection[Prefix]) -> Container[Address]:
    """Return a container of all addresses within these prefixes.

    Testing an address takes some 50 ns if the prefixes are small, as those of pods and nodes are, and otherwise 1 µs.
    """
    hosts: set[Address] = set()
    wide: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}
    for it in prefixes:
        if it.num_addresses + len(hosts) <= _LISTED:
            hosts.update(Address(str(host)) for host in it)
        else:
            shift = it.max_prefixlen - it.prefixlen
            wide[it.version].setdefault(shift, set()).add(int(it.network_address) >> shift)
    return _Wide(hosts, wide) if any(wide.values()) else hosts


class _Wide:
    """Contains single addresses, and the addresses of prefixes that are too large to be expanded."""

    def __init__(self, hosts: set[Address], prefixes: dict[int, dict[int, set[int]]]) -> None:
        """`prefixes` has, by IP version and by the number of host bits, the network bits of each prefix as a number."""
        self._hosts = hosts
        self._prefixes = prefixes

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, str):
            return False
        version, inet = (6, socket.AF_INET6) if ":" in address else (4, socket.AF_INET)
        if address in self._hosts or not (by_shift := self._prefixes[version]):
            return address in self._hosts
        number = int.from_bytes(socket.inet_pton(inet, address), "big")
        return any(number >> shift in known for shift, known in by_shift.items())
