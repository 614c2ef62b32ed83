"""Finds the original destination of a redirected client. Connection tracking keeps it as long as the connection."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from kubeproxy.model import NODE_PORTS, Destination

SO_ORIGINAL_DST: Final = 80
"""linux/netfilter_ipv4.h; linux/netfilter_ipv6/ip6_tables.h has the same number."""
_PORT: Final = slice(2, 4)
_LAYOUTS: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 16, slice(4, 8)),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 28, slice(8, 24)),
}
"""By address family: the level of the socket option, the size of struct sockaddr_in or sockaddr_in6, and the position
of the IP address in the struct."""

_getsockopt = ctypes.CDLL(None).getsockopt
_getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_buffer = ctypes.create_string_buffer(28)
_length = ctypes.c_uint32()
_asked, _asked_at, _length_at = memoryview(_buffer).cast("B"), ctypes.addressof(_buffer), ctypes.addressof(_length)
"""One buffer is shared by all clients, because an answer is not kept."""


def key_of(destination: Destination) -> bytes:
    """Return the bytes that identify a destination: port and address, or only the port if it is a node port."""
    port = destination.port.to_bytes(2, "big")
    if destination.address in NODE_PORTS.values():
        return port
    family = socket.AF_INET6 if ":" in destination.address else socket.AF_INET
    return port + socket.inet_pton(family, destination.address)


def reader(family: int) -> Callable[[int], bytes]:
    """Return a function that returns the original destination of the client of a TCP socket, in the form of `key_of`.

    The function returns an empty result if the kernel does not know the destination, because rules or conntrack entries
    were flushed.
    """
    level, size, host = _LAYOUTS[socket.AddressFamily(family)]
    return partial(_read, int(level), size, host)


def _read(level: int, size: int, host: slice, fd: int) -> bytes:
    _length.value = size
    if _getsockopt(fd, level, SO_ORIGINAL_DST, _asked_at, _length_at) < 0:
        return b""
    return bytes(_asked[_PORT]) + bytes(_asked[host])
