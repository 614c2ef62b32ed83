"""Sets the mark and the hop limit of sockets that dial endpoints. They prevent loops of proxies.

An endpoint may be a service address: on this node, on another node that redirects back to this one, or in a ring of
nodes. The proxies would then accept and dial the same connection endlessly. Two measures prevent that.

The *mark* (SO_MARK): our rules do not redirect marked packets of this host, so our own dials are never redirected to
us. Setting the mark needs CAP_NET_RAW since Linux 5.17, and CAP_NET_ADMIN before.

The *hop limit* (IP_TTL, IPV6_UNICAST_HOPS) decreases with every proxy, as with every router: a dial has the hop limit
that was left in the client's packet, minus `COST`. This needs no privilege, and works over any number of nodes. For TCP
the client's hop limit is read from its SYN, which the kernel saves (TCP_SAVE_SYN). For a datagram it is in a control
message.
"""

from __future__ import annotations

import ctypes
import socket

from kubeproxy.model import MARK
from kubeproxy.runtime import privileges

FARTHEST = 64
"""The default hop limit of Linux. No dial has a higher one, so that a client with a high hop limit does not reach
further."""
COST = 8
"""How much of the hop limit one proxy uses up, so that a loop ends after eight proxies. The most distant hosts are some
30 routers away, and hosts start with 64, 128 or 255, so every client still reaches its endpoints."""

_SOCKET, _SO_MARK, _TCP = int(socket.SOL_SOCKET), int(socket.SO_MARK), int(socket.IPPROTO_TCP)
_TCP_SAVE_SYN, _TCP_SAVED_SYN = 27, 28
"""From linux/tcp.h. Python has no names for them."""
IP_RECVTTL, IPV6_RECVHOPLIMIT = 12, 51
"""From linux/in.h and linux/in6.h. Python 3.11 does not have the first."""
_SYN_BYTES = 256
"""The size of the buffer for a SYN: more than the longest IPv4 and TCP headers of 60 bytes each. (IPv6 headers depend
on options.) A longer SYN is not read, and its hop limit counts as unknown."""

_getsockopt = ctypes.CDLL(None).getsockopt
_getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_buffer = ctypes.create_string_buffer(_SYN_BYTES)
_length = ctypes.c_uint32()
_syn, _syn_at, _length_at = memoryview(_buffer).cast("B"), ctypes.addressof(_buffer), ctypes.addressof(_length)
"""One buffer is shared by all clients, because a SYN is not kept."""


def save_syns(listener: socket.socket) -> None:
    """Make the kernel save each client's SYN until `hops_of` reads it."""
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_SAVE_SYN, 1)


def hops_of(client: int) -> int:
    """Return the hop limit left in a client's SYN, or 0 if it is unknown, as with SYN cookies."""
    _length.value = _SYN_BYTES
    if _getsockopt(client, _TCP, _TCP_SAVED_SYN, _syn_at, _length_at) < 0 or _length.value < 40:
        return 0
    return _syn[8] if _syn[0] >> 4 == 4 else _syn[7]


def hops_left(received: int) -> int:
    """Return the hop limit for a dial, given the hop limit left in the client's packet (0 if unknown). If the result is
    0, no dial may be made."""
    return max(0, min(received or FARTHEST, FARTHEST) - COST)


def limit_hops(sock: socket.SocketType, hops: int) -> None:
    """Set a socket's hop limit."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)


def mark(sock: socket.SocketType) -> None:
    """Set our mark on a socket's packets, if this process has the capability."""
    try:  # noqa: SIM105 - half a microsecond less, for each connection
        sock.setsockopt(_SOCKET, _SO_MARK, MARK)
    except PermissionError:
        pass  # `why_not_marked` has reported this at the start.


def why_not_marked() -> str | None:
    """Return why a process with only the capabilities `privileges.FOR_DIALING` cannot mark dials, or None if it can.
    Call this in a separate thread, because that thread loses all other capabilities."""
    try:
        privileges.use_alone(privileges.FOR_DIALING)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    except OSError as error:
        return error.strerror or str(error)
    return None
