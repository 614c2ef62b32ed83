"""Connects to endpoints without blocking."""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.loop_prevention import limit_hops, mark
from kubeproxy.dataplane.sockets.transparent_dial import bind_as

if TYPE_CHECKING:
    from kubeproxy.model import Target

EPHEMERAL_PORTS_FROM = 32_768
"""The default start of net.ipv4.ip_local_port_range. If the range is set to begin lower, lower ports may be affected,
too."""
UNDER_WAY = (0, errno.EINPROGRESS)
UNREACHABLE = (
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EACCES,  # ICMPv6: administratively prohibited
)
"""The errors that are the endpoint's fault. All others (no port, no memory) are this host's own."""
_REFUSALS = (errno.ECONNREFUSED, errno.ECONNRESET)
HUNG_UP = select.EPOLLERR | select.EPOLLHUP
"""The events for an endpoint that refused, or a client that reset its connection. (They do not include FIN: a client
that has sent FIN may still want its answer.)"""
NON_BLOCKING_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


def begin_connecting(target: Target, *, client: str | None, hops: int) -> int:
    """Start to connect to an endpoint with a hop limit of `hops`, and return the descriptor. `client` is the source
    address, or None for an address of this node. Raise OSError if the connect fails at once."""
    # The C type is used because `socket.socket` costs three more Python calls.
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


def failure(error: int) -> str:
    """Return why an endpoint cannot be reached, for an errno: ``refused`` or ``unreachable``. Unreachable means that
    the endpoint's host or the route to it is gone, or that a router forbids the connection. Everything else counts as a
    refusal by the endpoint's host, which is up."""
    return "unreachable" if error in UNREACHABLE and error not in _REFUSALS else "refused"


def pending_failure(fd: int) -> str:
    """Return the result of `failure` for a socket that has hung up during connect, and clear the socket's error."""
    sock = socket.socket(fileno=fd)
    try:
        return failure(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    finally:
        sock.detach()


def is_own_echo(fd: int, target: Target) -> bool:
    """Return whether the kernel has connected the socket to itself, by a simultaneous open. This can happen if an
    endpoint on this host has stopped, and its port is in the ephemeral range."""
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
    """Set the options for both sockets of a connection. (Accepted sockets inherit them from their listener.) Urgent
    data is kept in the stream, because otherwise a proxy would lose it."""
    setsockopt = sock.setsockopt
    setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
