"""Subscribes to the kernel's netlink(7) notifications, and reads them without blocking."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

_MESSAGE_BYTES = 1 << 16


def subscribe(protocol: int, *groups: int) -> socket.socket:
    """Return a non-blocking socket that is subscribed to these groups. Raise OSError if the kernel does not have them,
    or refuses the subscription (CAP_NET_ADMIN)."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    try:
        sock.bind((0, sum(1 << (group - 1) for group in groups)))
    except BaseException:
        sock.close()
        raise
    return sock


def received(sock: socket.socket) -> Iterator[bytes | None]:
    """Yield the results of all reads that do not block, each with one or more messages. Yield None where messages were
    lost because the buffer was full."""
    while True:
        try:
            yield sock.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            yield None
