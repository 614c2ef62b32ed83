"""The mark and the hop limit of sockets that dial endpoints. They end loops of proxies.

An endpoint may be a service address: of this node, of another node that leads back to this one, or of a ring of nodes.
Proxies would then accept and dial for such a connection without end. Two things prevent that.

The *mark* (SO_MARK): our rules do not redirect marked packets of this host, so our own dials are never redirected here.
Setting the mark takes CAP_NET_RAW since Linux 5.17, and CAP_NET_ADMIN before.

The *hop limit* (IP_TTL, IPV6_UNICAST_HOPS) decreases with every proxy, as with every router: a dial has the hop limit
that the client's packet had left, less `COST`. That needs no privilege and works over any number of nodes, because the
packets carry it. What a TCP client's hop limit has left is in its SYN, which the kernel saves (TCP_SAVE_SYN). That of a
datagram is in its control message.
"""

from __future__ import annotations

import ctypes
import socket

from kubeproxy.model import MARK
from kubeproxy.runtime import privileges

FARTHEST = 64
"""Linux's default hop limit. No dial gets more, so that a client with a higher hop limit reaches no further."""
COST = 8
"""The part of the hop limit that one proxy uses up, so that a loop ends after eight proxies. The most distant hosts are
some 30 routers away, and hosts start with 64, 128 or 255. So every client still reaches its endpoints."""

_SOCKET, _SO_MARK, _TCP = int(socket.SOL_SOCKET), int(socket.SO_MARK), int(socket.IPPROTO_TCP)
_TCP_SAVE_SYN, _TCP_SAVED_SYN = 27, 28
"""These are from linux/tcp.h; Python has no names for them."""
IP_RECVTTL, IPV6_RECVHOPLIMIT = 12, 51
"""These are from linux/in.h and linux/in6.h; Python 3.11 has no name for the first."""
_SYN_BYTES = 256
"""The longest IPv4 and TCP headers, 60 bytes each. Those of IPv6 depend on its options. A longer SYN is not read, and
its hop limit counts as unknown."""

_getsockopt = ctypes.CDLL(None).getsockopt
_getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_buffer = ctypes.create_string_buffer(_SYN_BYTES)
_length = ctypes.c_uint32()
_syn, _syn_at, _length_at = memoryview(_buffer).cast("B"), ctypes.addressof(_buffer), ctypes.addressof(_length)
"""There is one buffer for all clients, because a SYN is not kept."""


def save_syns(listener: socket.socket) -> None:
    """Have the kernel save the SYN of each client until `hops_of` reads it."""
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_SAVE_SYN, 1)


def hops_of(client: int) -> int:
    """Return the hop limit that a client's SYN had left, or 0 if it is unknown, as with a SYN cookie."""
    _length.value = _SYN_BYTES
    if _getsockopt(client, _TCP, _TCP_SAVED_SYN, _syn_at, _length_at) < 0 or _length.value < 40:
        return 0
    return _syn[8] if _syn[0] >> 4 == 4 else _syn[7]


def hops_left(received: int) -> int:
    """Return the hop limit of a dial for a client whose packet had `received` left (0 if unknown). With 0 as the answer
    no dial may be made."""
    return max(0, min(received or FARTHEST, FARTHEST) - COST)


def limit_hops(sock: socket.SocketType, hops: int) -> None:
    """Set a socket's hop limit."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)


def mark(sock: socket.SocketType) -> None:
    """Mark a socket's packets as ours, if this process has the capability."""
    try:  # noqa: SIM105 - half a microsecond less, for each connection
        sock.setsockopt(_SOCKET, _SO_MARK, MARK)
    except PermissionError:
        pass  # `why_not_marked` reports it at the start


def why_not_marked() -> str | None:
    """Return the reason why a process with `privileges.FOR_DIALING` alone cannot mark dials, or None if it can. Call
    this in a thread of its own, because capabilities belong to a thread, and this thread loses all others."""
    try:
        privileges.use_alone(privileges.FOR_DIALING)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    except OSError as error:
        return error.strerror or str(error)
    return None
