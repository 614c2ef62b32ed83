"""What the kernel tells everybody by netlink(7): subscribed to, and heard without waiting."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

_MESSAGE_BYTES = 1 << 16


def subscribe(protocol: int, *groups: int) -> socket.socket:
    """A subscription, non-blocking. OSError when the kernel has no such groups, or not for us (CAP_NET_ADMIN)."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    try:
        sock.bind((0, sum(1 << (group - 1) for group in groups)))
    except BaseException:
        sock.close()
        raise
    return sock


def heard(sock: socket.socket) -> Iterator[bytes | None]:
    """The messages that are there; None in place of those that there was no room for."""
    while True:
        try:
            yield sock.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            yield None
