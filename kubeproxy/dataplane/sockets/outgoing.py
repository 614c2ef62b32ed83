"""What sockets that dial endpoints tell the kernel: a mark that netfilter spares, and how far their packets may go.

An endpoint may be a service address: of this node, of another one whose endpoint is this node again, or of a ring of
nodes. Each connection would then be accepted by a proxy and dialed for again, without end. Two things stop it.

The *mark* (SO_MARK) is what our rules look for before they redirect a packet of this host, so a dial of ours is never
redirected here. Setting it takes CAP_NET_RAW since Linux 5.17, before that CAP_NET_ADMIN.

The *hop limit* (IP_TTL, IPV6_UNICAST_HOPS) goes down with every proxy, as it does with every router: a dial has what
the client's own packet had left, less `COST`. It needs no privilege, and it holds over any number of nodes, because the
packets themselves carry it. What a client's packet had left is known of a TCP client by its SYN, which the kernel saves
for us (TCP_SAVE_SYN), and of a datagram by its control message.
"""

from __future__ import annotations

import ctypes
import socket

from kubeproxy.model import MARK
from kubeproxy.runtime import privileges

FARTHEST = 64
"""The hop limit with which Linux hosts send, so that a client that says more gets no longer way than others."""
COST = 8
"""What one proxy takes of it: a loop over any number of nodes ends after eight of them. The most distant hosts are some
30 routers away, and hosts begin with 64, 128 or 255, so endpoints remain in reach of any client."""

_SOCKET, _SO_MARK, _TCP = int(socket.SOL_SOCKET), int(socket.SO_MARK), int(socket.IPPROTO_TCP)
_TCP_SAVE_SYN, _TCP_SAVED_SYN = 27, 28
"""linux/tcp.h; Python has no names for them."""
IP_RECVTTL, IPV6_RECVHOPLIMIT = 12, 51
"""linux/in.h, linux/in6.h; Python 3.11 has no name for the first."""
_SYN_BYTES = 256
"""The longest IP and TCP headers are 60 bytes each, those of IPv6 as long as its options are; longer ones are not read,
and count as if they said nothing."""

_getsockopt = ctypes.CDLL(None).getsockopt
_getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_buffer = ctypes.create_string_buffer(_SYN_BYTES)
_length = ctypes.c_uint32()
_syn, _syn_at, _length_at = memoryview(_buffer).cast("B"), ctypes.addressof(_buffer), ctypes.addressof(_length)
"""One for all clients: a SYN is read and forgotten."""


def save_syns(listener: socket.socket) -> None:
    """Have the kernel keep the SYN of each client until `hops_of` asks for it."""
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_SAVE_SYN, 1)


def hops_of(client: int) -> int:
    """How many hops an accepted client's SYN had left; 0 where the kernel does not know, as with a SYN cookie."""
    _length.value = _SYN_BYTES
    if _getsockopt(client, _TCP, _TCP_SAVED_SYN, _syn_at, _length_at) < 0 or _length.value < 40:
        return 0
    return _syn[8] if _syn[0] >> 4 == 4 else _syn[7]


def hops_left(received: int) -> int:
    """The hop limit of a dial for a client whose packet had so many left (0: unknown); 0: it may go no further."""
    return max(0, min(received or FARTHEST, FARTHEST) - COST)


def limit_hops(sock: socket.SocketType, hops: int) -> None:
    """Let what a socket sends go so far."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)


def mark(sock: socket.SocketType) -> None:
    """Let netfilter know what a socket sends for ours, as far as this process may."""
    try:  # noqa: SIM105 - half a microsecond less, for each connection
        sock.setsockopt(_SOCKET, _SO_MARK, MARK)
    except PermissionError:
        pass  # as `why_not_marked` has said at the start


def why_not_marked() -> str | None:
    """Why dials will not be marked by a process that has kept `privileges.FOR_DIALING` alone; None if they will.

    To be called in a thread that ends with it: capabilities are a thread's own, and this one loses the others."""
    try:
        privileges.use_alone(privileges.FOR_DIALING)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    except OSError as error:
        return error.strerror or str(error)
    return None
