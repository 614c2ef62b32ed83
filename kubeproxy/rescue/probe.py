"""Dials an endpoint from this node, in the control process, to find out whether it accepts a connection or refuses
datagrams."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final, NamedTuple

from kubeproxy.dataplane.sockets.connect import UNREACHABLE
from kubeproxy.dataplane.sockets.loop_prevention import COST, FARTHEST, limit_hops, mark
from kubeproxy.model import Target

DIAL_S: Final = 0.9
"""How long a dial may take. This is less than a second, after which the kernel would retransmit the SYN, and longer
than a client's connection may take, so that a slow path is recognized as slow and not as dead."""
_BLACKHOLE: Final = errno.EINVAL
"""The error of a blackhole route."""
REFUSAL_S: Final = 0.25
"""How long to wait for the refusal of a datagram: as long as until a TCP endpoint counts as silent."""
_RECVERR: Final = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
"""The socket options IP_RECVERR and IPV6_RECVERR. With them a socket gets every ICMP error, and not only those of
closed ports."""


class Outcome(NamedTuple):
    """The result of a dial."""

    answered: bool | None
    """Whether the endpoint answered, or None if this host could not dial."""
    took_s: float


async def dial(target: Target) -> Outcome:
    """Connect to an endpoint, and close the connection without sending a byte."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    answered: bool | None
    try:
        with socket.socket(socket.AF_INET6 if ":" in target.address else socket.AF_INET) as sock:
            sock.setblocking(False)
            mark(sock)
            limit_hops(sock, FARTHEST - COST)
            async with asyncio.timeout(DIAL_S):
                await loop.sock_connect(sock, target)
            # By a simultaneous open, a socket can connect to its own port if the endpoint is on this host.
            answered = sock.getsockname() != sock.getpeername()
    except TimeoutError:
        answered = False
    except OSError as error:
        answered = False if error.errno in (*UNREACHABLE, _BLACKHOLE) else None
    return Outcome(answered, loop.time() - began)


async def refuses_datagrams(target: Target) -> bool:
    """Return whether an empty datagram to an endpoint comes back as an ICMP error.

    A healthy endpoint usually does not reply, so silence proves nothing.
    """
    loop = asyncio.get_running_loop()
    inet = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    try:
        with socket.socket(inet, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            mark(sock)
            limit_hops(sock, FARTHEST - COST)
            sock.setsockopt(*_RECVERR[inet], 1)
            sock.connect(target)
            sock.send(b"")
            async with asyncio.timeout(REFUSAL_S):
                await loop.sock_recv(sock, 1)
    except TimeoutError:
        return False
    except OSError as error:
        return error.errno in UNREACHABLE
    return False
