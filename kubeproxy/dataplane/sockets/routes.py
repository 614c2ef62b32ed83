"""Asks the kernel for the interface through which it reaches an address (rtnetlink(7), RTM_GETROUTE). This needs no
privilege."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import closing, suppress
from typing import NamedTuple

_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 1, 4, 5, 18
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ROUTE = struct.Struct("=BB10x")  # struct rtmsg: family, length of the destination's prefix
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type
_ANSWER_BYTES = 4096


class Way(NamedTuple):
    """The kernel's route to an address."""

    interface: int
    """The number of the outgoing interface. For this host's own addresses that is the loopback interface."""
    direct: bool
    """Whether the address is on the interface's own link, and not behind a gateway."""


class Routes:
    """A netlink socket for route lookups. A lookup takes some ten microseconds, and does not wait for any kernel
    lock."""

    def __init__(self) -> None:
        """Open the socket. Raise OSError if the kernel has no rtnetlink."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._sequence = 0

    def to(self, address: str) -> Way | None:
        """Return the route to an address, or None if there is none. Raise OSError if the kernel refuses to answer."""
        inet = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(inet, address)
        self._sequence += 1
        length = _HEADER.size + _ROUTE.size + _ATTRIBUTE.size + len(packed)
        self._socket.send(
            _HEADER.pack(length, _RTM_GETROUTE, _NLM_F_REQUEST, self._sequence, 0)
            + _ROUTE.pack(inet, 8 * len(packed))
            + _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST)
            + packed
        )
        while True:
            data = self._socket.recv(_ANSWER_BYTES)
            _, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if sequence == self._sequence:
                return _way(data) if kind == _RTM_NEWROUTE else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def way_to(address: str) -> Way | None:
    """Return the route to one address, or None if there is none or the kernel refuses to answer."""
    with suppress(OSError), closing(Routes()) as routes:
        return routes.to(address)
    return None


def _way(answer: bytes) -> Way | None:
    at, interface, direct = _HEADER.size + _ROUTE.size, None, True
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _RTA_OIF:
            interface = int.from_bytes(answer[at + _ATTRIBUTE.size : at + length], sys.byteorder)
        elif kind in (_RTA_GATEWAY, _RTA_VIA):
            direct = False
        at += max(_ATTRIBUTE.size, length + 3 & ~3)
    return None if interface is None else Way(interface, direct)
