"""Preserves the client's address by dialing the endpoint from that address.

The kernel lets a socket with IP_TRANSPARENT send from an address that this host does not have. Netfilter and routing
return the endpoint's answers: they are addressed to the client, and a mark routes them to this host's sockets.

That works for endpoints that answer through this node. These are its own pods, unless they share a link with the
client, as pods on one bridge do. On a shared link an endpoint answers its client directly, without passing netfilter.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from kubeproxy.dataplane.sockets.routes import Routes
from kubeproxy.model import Family

IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
IP_BIND_ADDRESS_NO_PORT = 24
"""These are from linux/in.h and linux/in6.h; Python 3.11 has no names for them. With the last one, which works for IPv6
too, connect() chooses the port, and the same port can serve many destinations."""


def can_preserve(client: str, endpoint: str, routes: Routes) -> bool:
    """Return whether an endpoint can be dialed from a client's address. It cannot from a loopback address, which only
    this host can answer, from the endpoint's own address, and from an address on the link by which this host reaches
    the endpoint. Raise OSError when the kernel does not tell its routes."""
    if client == endpoint or client.startswith("127.") or client == "::1":
        return False
    to_client, to_endpoint = routes.to(client), routes.to(endpoint)
    return not (to_client and to_endpoint and to_client.direct and to_client.interface == to_endpoint.interface)


def bind_as(sock: socket.SocketType, client: str) -> None:
    """Bind a socket to a client's address. Raise OSError with EPERM if this process has neither CAP_NET_RAW nor
    CAP_NET_ADMIN."""
    _make_transparent(sock)
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((client, 0))


def make_recognizable(sock: socket.socket) -> None:
    """Mark a listening socket as ours for netfilter, by IP_TRANSPARENT, which few other programs set. Accepted sockets
    inherit it. Without the privilege this does nothing."""
    with suppress(PermissionError):
        _make_transparent(sock)


def _make_transparent(sock: socket.SocketType) -> None:
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)


def why_not(family: Family) -> str | None:
    """Return why this process cannot preserve clients' addresses, or None if it can."""
    kind, address = (socket.AF_INET6, "2001:db8::1") if family is Family.IPV6 else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(kind, socket.SOCK_STREAM) as sock:
            bind_as(sock, address)
    except OSError as error:
        return error.strerror or str(error)
    return None
