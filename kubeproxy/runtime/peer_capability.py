"""Proves to a peer process that this process has CAP_NET_ADMIN in the network namespace. The kernel checks the proof.

The verifier sends the prover a new socket. The prover sets the option SO_TXTIME with CLOCK_TAI on this socket, which
the kernel allows only to a process with CAP_NET_ADMIN in the user namespace that owns the socket's network namespace
(net/core/sock.c). Then the verifier reads the option. PIDs and /proc are not used, because two pods on the host's
network have PID namespaces of their own, and PIDs may be reused.

A process without the capability could pass the socket on, and have another process set the option: the verifier itself
on a second connection, a prover of another verifier, or a control process in another network namespace. So the verifier
first binds the socket to ``kubeproxy/challenge/PURPOSE/CONTROL SOCKET/RANDOM``, which names the purpose of the proof
and the control socket. A bound socket cannot be bound again. A prover sets the option only if the name has the expected
purpose and the control socket of its own connection, and the socket belongs to its own network namespace.

The same option makes a named socket a certificate. `sign` sets the option on a socket of this process. A later process
that receives the socket from another process finds out by `is_signed` that a process with the capability has signed the
name.

The sockets are unconnected Unix sockets, on which the option has no other effect.
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
"""From asm-generic/socket.h (Linux 4.19). Python has no name for this socket option."""
_TXTIME: Final = struct.Struct("=iI")
"""The struct sock_txtime: clock and flags."""
_SIOCGSKNS: Final = 0x894C
"""The ioctl that returns the network namespace of a socket, from linux/sockios.h (Linux 4.10). It requires
CAP_NET_ADMIN in that namespace."""


class Purpose(Enum):
    """The purpose of a proof."""

    OWN = "own"
    """The process at a control socket proves that it may own the node."""
    TAKE = "take"
    """A new instance with the same protocol version proves that it may take over from the owner."""
    STOP = "stop"
    """A new instance with another protocol version proves that it may stop the owner."""
    ORDER = "order"
    """A command proves that it may change the state of endpoints."""
    RETIRE = "retire"
    """The owner proves that it may stop an orphaned worker."""


class Challenge:
    """A socket on which a peer has to prove that it has CAP_NET_ADMIN."""

    def __init__(self, purpose: Purpose, control: str) -> None:
        """Make the socket. `control` is the name of the control socket over which it will be sent. Raise OSError if no
        descriptor is available."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._sock.bind(_bound(purpose, control) + os.urandom(8).hex().encode())
        except OSError:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to be sent to the peer."""
        return self._sock.fileno()

    @property
    def answered(self) -> bool:
        """Return whether a process with CAP_NET_ADMIN has answered the challenge."""
        return _has_option(self._sock)

    def close(self) -> None:
        """Close the descriptor."""
        self._sock.close()


def answer(challenge: int, purpose: Purpose, control: str) -> bool:
    """Answer a challenge, which is a received descriptor, and close the descriptor. Return whether the challenge has
    this purpose and the kernel has allowed the answer.

    `control` is the name of the control socket over which the descriptor was received.
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
            # Compare everything before the random part, because the name of one control socket may be a prefix of
            # another.
            if not isinstance(name, bytes) or name[: name.rfind(b"/") + 1] != _bound(purpose, control):
                return False
            if not _of_this_network(sock):
                return False
            return sign(sock)
    except OSError:
        return False


def sign(sock: socket.socket) -> bool:
    """Sign the name of a socket of this process. The signature lasts as long as the socket. Return whether the kernel
    has allowed that, because this process has CAP_NET_ADMIN."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, _TXTIME.pack(time.CLOCK_TAI, 0))
    except OSError:
        return False
    return True


def is_signed(descriptor: int, name: str) -> bool:
    """Return whether a received descriptor is a signed socket of this network namespace with this abstract name. Close
    the descriptor."""
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
    except OSError:  # The kernel is older than 4.19.
        return False
    return bool(clock == time.CLOCK_TAI)


def _bound(purpose: Purpose, control: str) -> bytes:
    """Return the name of a challenge's socket up to its random part."""
    return f"\0{_PREFIX}/{purpose.value}/{control}/".encode()


def _of_this_network(sock: socket.socket) -> bool:
    """Return whether a socket belongs to this network namespace. In other namespaces, any process could bind the names
    of control sockets."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        return _network(own) == _network(sock)


def _network(sock: socket.socket) -> tuple[int, int]:
    """Return device and inode of a socket's network namespace. Raise OSError if this process lacks CAP_NET_ADMIN in
    that namespace."""
    descriptor = fcntl.ioctl(sock, _SIOCGSKNS)
    try:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    finally:
        os.close(descriptor)
