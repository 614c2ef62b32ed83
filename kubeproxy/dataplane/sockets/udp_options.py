"""Sets options of UDP sockets towards clients."""

from __future__ import annotations

import socket
from contextlib import suppress

from kubeproxy.dataplane.sockets.loop_prevention import IP_RECVTTL, IPV6_RECVHOPLIMIT

BUFFER_BYTES = 4 << 20
"""The size of the buffers of a frontend's socket in bytes, for all its clients: some 64 datagrams of the largest
size."""
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
"""From asm-generic/socket.h. Python has no names for them."""
IP_PKTINFO = 8
"""From linux/in.h. Python 3.11 has no name for it."""


def prepare(sock: socket.socket) -> None:
    """Set the options of a socket towards clients. The serving process calls this again, because it may have fewer
    privileges."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    for force, ask in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        if sock.getsockopt(socket.SOL_SOCKET, ask) >= BUFFER_BYTES:
            continue
        # The size may exceed net.core.{r,w}mem_max only with CAP_NET_ADMIN. Without it, set the size up to that limit.
        sock.setsockopt(socket.SOL_SOCKET, ask, BUFFER_BYTES)
        with suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
