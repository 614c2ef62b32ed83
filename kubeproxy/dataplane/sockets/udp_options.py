"""Options of UDP sockets towards clients."""

from __future__ import annotations

import socket
from contextlib import suppress

from kubeproxy.dataplane.sockets.loop_prevention import IP_RECVTTL, IPV6_RECVHOPLIMIT

BUFFER_BYTES = 4 << 20
"""The socket buffers towards all clients of a frontend: some 64 datagrams of the largest size."""
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
"""These are from asm-generic/socket.h; Python has no names for them."""
IP_PKTINFO = 8
"""This is from linux/in.h; Python 3.11 has no name for it."""


def prepare(sock: socket.socket) -> None:
    """Set the options of a socket towards clients. The serving process, which may have fewer privileges, calls this as
    well."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    for force, ask in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        if sock.getsockopt(socket.SOL_SOCKET, ask) >= BUFFER_BYTES:
            continue
        # Only with CAP_NET_ADMIN the size may exceed net.core.{r,w}mem_max; without it that is the limit.
        sock.setsockopt(socket.SOL_SOCKET, ask, BUFFER_BYTES)
        with suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
