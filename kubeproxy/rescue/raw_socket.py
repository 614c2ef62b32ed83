"""Sends complete packets in the name of clients on this host. They pass the output hook, as the client's own packets
did.

The sockets are created while the process has CAP_NET_RAW, and used without it. They can send any IP packet in this
network namespace, and receive none (raw(7), IPPROTO_RAW).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Final

_ROOM_BYTES: Final = 1 << 20
_IPV6_HDRINCL: Final = 36
"""linux/in6.h."""


class RawSockets:
    """One raw socket for each IP family of the kernel."""

    def __init__(self) -> None:
        """Create the sockets. Raise OSError if this process may not do that."""
        self._sockets: Mapping[int, socket.socket] = {
            size: made for size, made in ((4, _open(socket.AF_INET)), (16, _open(socket.AF_INET6))) if made is not None
        }

    def send(self, packet: bytes, by_way_of: bytes) -> None:
        """Send a packet, routed by the address `by_way_of` of its family. Raise OSError if the kernel does not send
        it."""
        sock = self._sockets.get(len(by_way_of))
        if sock is None:
            raise OSError(errno.EAFNOSUPPORT, "the kernel has no such family")
        inet = socket.AF_INET if len(by_way_of) == 4 else socket.AF_INET6
        sock.sendto(packet, (socket.inet_ntop(inet, by_way_of), 0))

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets.values():
            sock.close()


def _open(family: int) -> socket.socket | None:
    try:
        sock = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.IPPROTO_RAW)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_HDRINCL, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return sock
