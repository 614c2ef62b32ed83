"""Proof that a peer holds CAP_NET_ADMIN over this network namespace, checked by the kernel.

The verifier sends the peer a new socket. The peer sets SO_TXTIME with CLOCK_TAI on it, which the kernel allows only to
a process with CAP_NET_ADMIN in the user namespace that owns the socket's network namespace (net/core/sock.c). The
verifier reads the option back. Neither side looks at process numbers or /proc: two pods on the host's network have
PID namespaces of their own and do not see each other there, and a number may be reused.

A socket can be passed on, so a process without the capability could have it answered by another one: by the verifier
itself on a second connection, by the peer of somebody else, or by a control process of another network namespace. So
the verifier binds it before it is sent, to ``kubeproxy/challenge/PURPOSE/CONTROL SOCKET/RANDOM``: what the proof is
for, and between whom. The kernel binds a socket once and for ever. A prover answers only what is bound to the purpose
and to the control socket of this very connection, and belongs to its own network namespace.

The same option makes a socket a certificate: `sign` sets it on a socket of one's own that has a name, and `is_signed`
tells a later process, which gets the socket from somebody else, that the name is from a process with the capability.

The socket is an unconnected Unix socket, so that the option has no other effect.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from enum import Enum
from typing import Final

_PREFIX: Final = "kubeproxy/challenge"
_SO_TXTIME: Final = 61
"""asm-generic/socket.h; Linux 4.19 and newer. Python has no name for it."""
_TXTIME: Final = struct.Struct("=iI")
"""The struct sock_txtime, which has a clock and flags."""
_SIOCGSKNS: Final = 0x894C
"""linux/sockios.h: asks for the network namespace of a socket. It needs CAP_NET_ADMIN there, and Linux 4.10 or
newer."""


class Purpose(Enum):
    """The purpose of a proof."""

    OWN = "own"
    """The process at a control socket proves that it may own the node."""
    TAKE = "take"
    """A new instance of the same protocol version proves that it may take over from the owner."""
    STOP = "stop"
    """A new instance of another protocol version proves that it may have the owner stop."""
    ORDER = "order"
    """A command proves that its caller may give orders about endpoints."""
    RETIRE = "retire"
    """The owner proves that an orphaned worker may obey it."""


class Challenge:
    """A socket for a peer to answer on."""

    def __init__(self, purpose: Purpose, control: str) -> None:
        """Make the socket. `control` is the control socket over which it is sent. Raise OSError if there is no
        descriptor."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._sock.bind(_bound(purpose, control) + os.urandom(8).hex().encode())
        except OSError:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to send."""
        return self._sock.fileno()

    @property
    def answered(self) -> bool:
        """Return whether a process with CAP_NET_ADMIN has answered."""
        return _has_option(self._sock)

    def close(self) -> None:
        """Close the descriptor."""
        self._sock.close()


def answer(challenge: int, purpose: Purpose, control: str) -> bool:
    """Answer on a received descriptor, and close the descriptor. Return whether the challenge is for that purpose, and
    the kernel has allowed the answer.

    `control` is the control socket over which the descriptor came.
    """
    try:
        received = socket.socket(fileno=challenge)
    except OSError:  # The descriptor is no socket.
        os.close(challenge)
        return False
    try:
        with received as sock:
            if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
                return False
            name = sock.getsockname()
            # Names of control sockets may begin alike, so everything before the random part is compared.
            if not isinstance(name, bytes) or name[: name.rfind(b"/") + 1] != _bound(purpose, control):
                return False
            if not _of_this_network(sock):
                return False
            return sign(sock)
    except OSError:
        return False


def sign(sock: socket.socket) -> bool:
    """Certify the name of a socket of ours for as long as the socket exists. Return whether the kernel has allowed
    that, which takes CAP_NET_ADMIN."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, _TXTIME.pack(time.CLOCK_TAI, 0))
    except OSError:
        return False
    return True


def is_signed(descriptor: int, name: str) -> bool:
    """Return whether a received descriptor is a socket of this network namespace with that abstract name, which a
    process with CAP_NET_ADMIN has signed. Close it."""
    try:
        received = socket.socket(fileno=descriptor)
    except OSError:  # The descriptor is no socket.
        os.close(descriptor)
        return False
    with received as sock:
        try:
            of_that_name = sock.family == socket.AF_UNIX and sock.getsockname() == f"\0{name}".encode()
            return of_that_name and _has_option(sock) and _of_this_network(sock)
        except OSError:
            return False


def _has_option(sock: socket.socket) -> bool:
    """Return whether a process with CAP_NET_ADMIN has set the option."""
    try:
        clock, _ = _TXTIME.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_TXTIME, _TXTIME.size))
    except OSError:  # This is a kernel before 4.19.
        return False
    return bool(clock == time.CLOCK_TAI)


def _bound(purpose: Purpose, control: str) -> bytes:
    """Return the part of a name before its random part."""
    return f"\0{_PREFIX}/{purpose.value}/{control}/".encode()


def _of_this_network(sock: socket.socket) -> bool:
    """Return whether a socket belongs to our network namespace. In every other namespace the names of control sockets
    are free."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        return _network(own) == _network(sock)


def _network(sock: socket.socket) -> tuple[int, int]:
    """Return the network namespace of a socket. Raise OSError without CAP_NET_ADMIN there."""
    descriptor = fcntl.ioctl(sock, _SIOCGSKNS)
    try:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    finally:
        os.close(descriptor)
