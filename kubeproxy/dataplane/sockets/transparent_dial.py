"""Preserves the client's address by dialing the endpoint from that address.

A socket with IP_TRANSPARENT may send from an address that this host does not have. The endpoint's answers are addressed
to the client. Netfilter marks them, and routing rules deliver marked packets to this host's sockets.

This works for endpoints whose answers pass through this node. Those are the node's own pods, unless they share a link
with the client, as pods on the same bridge do. On a shared link the endpoint answers the client directly, bypassing
netfilter.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from kubeproxy.dataplane.sockets.routes import Routes
from kubeproxy.model import Family

IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
IP_BIND_ADDRESS_NO_PORT = 24
"""From linux/in.h and linux/in6.h. Python 3.11 has no names for them. With the last one, which also works for IPv6,
connect() chooses the port, so that one port can serve many destinations."""


def can_preserve(client: str, endpoint: str, routes: Routes) -> bool:
    """Return whether an endpoint can be dialed from a client's address. This is not possible from a loopback address,
    from the endpoint's own address, or from an address on the link through which this host reaches the endpoint. Raise
    OSError if the kernel does not answer about routes."""
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
    """Set IP_TRANSPARENT on a listening socket, so that netfilter recognizes it as ours; few other programs set this
    option. Accepted sockets inherit it. Without the privilege this does nothing."""
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
