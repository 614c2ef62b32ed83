"""Proof that a peer holds CAP_NET_ADMIN over this network namespace, checked by the kernel.

The verifier sends the peer a new socket. The peer sets SO_TXTIME with CLOCK_TAI on it, which the kernel allows only to
a process with CAP_NET_ADMIN in the user namespace that owns the socket's network namespace (net/core/sock.c). The
verifier reads the option back. Neither side looks at process numbers or /proc: two pods on the host's network have
PID namespaces of their own and do not see each other there, and a number may be reused.

The socket is an unconnected Unix socket, so that the option has no other effect. A peer can pass the socket on to a
third process; `kubeproxy.daemon.takeover.server` describes the limits of that.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Final

_SO_TXTIME: Final = 61
"""asm-generic/socket.h; Linux 4.19 and newer. Python has no name for it."""
_TXTIME: Final = struct.Struct("=iI")
"""struct sock_txtime: clock, flags."""


class Challenge:
    """A socket for a peer to answer on."""

    def __init__(self) -> None:
        """OSError when there is no descriptor."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def fileno(self) -> int:
        """The descriptor to send."""
        return self._sock.fileno()

    @property
    def answered(self) -> bool:
        """Whether a process with CAP_NET_ADMIN has answered."""
        try:
            clock, _ = _TXTIME.unpack(self._sock.getsockopt(socket.SOL_SOCKET, _SO_TXTIME, _TXTIME.size))
        except OSError:  # a kernel before 4.19
            return False
        return bool(clock == time.CLOCK_TAI)

    def close(self) -> None:
        """Close the descriptor."""
        self._sock.close()


def answer(challenge: int) -> bool:
    """Answer on a received descriptor, and close it; whether the kernel allowed it."""
    try:
        received = socket.socket(fileno=challenge)
    except OSError:  # no socket
        os.close(challenge)
        return False
    try:
        with received as sock:
            if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
                return False
            sock.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, _TXTIME.pack(time.CLOCK_TAI, 0))
    except OSError:
        return False
    return True
