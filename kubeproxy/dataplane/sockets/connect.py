"""Connecting to an endpoint without waiting for it."""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.client_address import bind_as
from kubeproxy.dataplane.sockets.outgoing import limit_hops, mark

if TYPE_CHECKING:
    from kubeproxy.model import Target

EPHEMERAL_PORTS_FROM = 32_768
"""net.ipv4.ip_local_port_range begins here by default; lower it and lower ports are concerned too."""
UNDER_WAY = (0, errno.EINPROGRESS)
UNREACHABLE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
"""What speaks against the endpoint; other errors (no port, no memory) are this host's own."""
HUNG_UP = select.EPOLLERR | select.EPOLLHUP
"""An endpoint that refused, or a client that reset. (A client that only said FIN may still want its answer.)"""
NON_BLOCKING_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


def begin_connecting(target: Target, *, client: str | None, hops: int) -> int:
    """A descriptor whose connection to an endpoint at most so many hops away is under way, from the address of `client`
    if one is given. OSError when it could not even begin."""
    # The C type: a `socket.socket` costs three Python calls more.
    sock = socket.SocketType(socket.AF_INET6 if ":" in target.address else socket.AF_INET, NON_BLOCKING_STREAM)
    try:
        set_stream_options(sock)
        mark(sock)
        limit_hops(sock, hops)
        if client is not None:
            bind_as(sock, client)
        error = sock.connect_ex(target)
        if error not in UNDER_WAY:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock.detach()


def is_own_echo(fd: int, target: Target) -> bool:
    """Whether the kernel, by a simultaneous open, has connected the socket to itself: possible where a local endpoint
    is gone and its port lies in the ephemeral range."""
    if target.port < EPHEMERAL_PORTS_FROM:
        return False
    sock = socket.socket(fileno=fd)
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False
    finally:
        sock.detach()


def set_stream_options(sock: socket.SocketType) -> None:
    """What both legs have; a listener hands its own down to what it accepts. Urgent data stays in line: a proxy that
    took it out would lose it."""
    setsockopt = sock.setsockopt
    setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
