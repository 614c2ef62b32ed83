"""Asks the kernel how it would route a packet from this host."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Iterable

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink.messages import answers, attributes, encode, frame, open_netlink

_RTM_GETROUTE = 26
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg: family, length of the destination, 5 more, type; flags
_RTA_DST, _RTA_OIF = 1, 4
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
"""The errors if there is no route, or only one of the types unreachable, prohibit and blackhole."""


_connect = ctypes.CDLL(None, use_errno=True).connect
_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
_NO_PEER = struct.pack("=H14x", socket.AF_UNSPEC)


def has_route(address: Address) -> bool:
    """Return whether this host has a route to an address. Nothing is sent."""
    return not without_route([address])


def without_route(addresses: Iterable[Address]) -> set[Address]:
    """Return the addresses to which this host has no route. Nothing is sent. It takes some 4 µs for each address."""
    found: set[Address] = set()
    with contextlib.ExitStack() as opened:
        sockets: dict[int, socket.socket] = {}
        for address in addresses:
            family = _inet(address)
            try:
                if family not in sockets:
                    sockets[family] = opened.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                sockets[family].connect((address, 9))
            except OSError as error:
                if error.errno in _NO_ROUTE:
                    found.add(address)
            else:
                # Otherwise the next route would have to be one for the source address of this one.
                _connect(sockets[family].fileno(), _NO_PEER, len(_NO_PEER))
    return found


def link_to(address: Address) -> int | None:
    """Return the number of the interface through which this host sends to an address: 0 if the address is this host's
    own, or None if there is no route. Raise OSError if the kernel refuses."""
    destination = socket.inet_pton(_inet(address), address)
    request = _ROUTE.pack(_inet(address), 8 * len(destination), 0, 0, 0, 0, 0, 0, 0) + encode([(_RTA_DST, destination)])
    with open_netlink() as netlink:
        netlink.send(frame(_RTM_GETROUTE, request, flags=0, sequence=1))
        try:
            # The kernel answers with the route only, without a message that ends the answer.
            found = next(answers(netlink, 1), None)
        except OSError as error:
            if error.errno in _NO_ROUTE:
                return None
            raise
    kind = _ROUTE.unpack_from(found.body)[7] if found is not None else None
    if found is None or kind not in (_RTN_UNICAST, _RTN_LOCAL):
        return None
    link = dict(attributes(found.body[_ROUTE.size :])).get(_RTA_OIF, b"")
    return int.from_bytes(link, sys.byteorder) if kind == _RTN_UNICAST else 0


def _inet(address: Address) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
