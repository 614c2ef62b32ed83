"""Reserves ports by binding sockets that do not listen, so that no other process can use the ports."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.messages import Listen
from kubeproxy.dataplane.sockets.transparent_dial import make_recognizable
from kubeproxy.dataplane.sockets.udp_options import prepare as prepare_datagrams
from kubeproxy.model import Address, Protocol

KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class ReservedPort:
    """A bound socket. `prepare` makes it ready for listening, and `release` frees the port."""

    def __init__(
        self,
        protocol: Protocol,
        address: Address,
        port: int,
        *,
        on_release: Callable[[ReservedPort], None],
        claim: bool = False,
        shared: bool = False,
    ) -> None:
        """With port 0 the kernel chooses the port. Raise OSError if the port is in use, or if this host does not have
        the address. For `claim` and `shared` see `PortReserver`."""
        self._on_release = on_release
        self.claim = claim
        self.protocol = protocol
        self.address = address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.sock = socket.socket(family, KINDS[protocol] | socket.SOCK_NONBLOCK)
        try:
            if family == socket.AF_INET6:
                self.sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if claim and shared:
                self.share(True)
            # With this option, our own connections in TIME_WAIT do not block the port after a restart. It is not set if
            # the kernel chooses the port, because with the option the kernel looks for a free port in only half of its
            # range. Once that half is full, each bind searches all of it. (10,000 sockets took 3.8 s instead of 0.1.)
            shared = protocol is Protocol.TCP and port != 0
            if shared:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind((address, port))
            if shared:
                # While no socket listens, Linux would let any socket with this option bind the same port, and even
                # listen.
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except BaseException:
            self.sock.close()
            raise
        self.port: int = self.sock.getsockname()[1]
        self._prepared = False

    def prepare(self) -> socket.socket:
        """Return the socket, ready for listening. Raise OSError if the port was lost (see `stop_listening`).
        SO_REUSEADDR is set again, which is safe because no other socket can listen beside this one. Accepted
        connections inherit the option, so they do not block the port after a restart."""
        if self._prepared:
            _bind_again(self.sock)
        self._prepared = True
        _set_options(self.protocol, self.sock)
        return self.sock

    def open_another(self) -> socket.socket:
        """Return another socket bound to this port and ready for listening, for another process. Raise OSError if the
        kernel refuses."""
        self.share(True)
        sock = socket.socket(self.sock.family, KINDS[self.protocol] | socket.SOCK_NONBLOCK)
        try:
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _set_options(self.protocol, sock)
            sock.bind((self.address, self.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def share(self, on: bool) -> None:
        """Set whether another process of our user may reserve the same port."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, on)

    def release(self) -> None:
        """Free the port. This may be called repeatedly."""
        if self.sock.fileno() >= 0:
            self.sock.close()
            self._on_release(self)


class ReservedPorts:
    """The reserved ports of one data plane. Each takes a descriptor of the budget."""

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._shared = False
        self._reserved: dict[tuple[Protocol, Address, int], ReservedPort] = {}

    def reserve(self, protocol: Protocol, address: Address, port: int, *, claim: bool = False) -> ReservedPort:
        """See `PortReserver.reserve`."""
        if not self._budget.take(1):
            raise OSError(errno.EMFILE, "all descriptors are in use; raise the limit on open files")
        try:
            reserved = ReservedPort(
                protocol, address, port, on_release=self._released, claim=claim, shared=self._shared
            )
        except BaseException:
            self._budget.give(1)
            raise
        self._reserved[protocol, address, reserved.port] = reserved
        return reserved

    def share(self, on: bool) -> None:
        """See `PortReserver.share`."""
        self._shared = on
        for reserved in self._reserved.values():
            if reserved.claim:
                reserved.share(on)

    def of(self, message: Listen) -> ReservedPort:
        """Return the reserved port for a message. Raise OSError if it is not reserved."""
        reserved = self._reserved.get((message.protocol, message.address, message.port))
        if reserved is None:
            raise OSError(errno.EINVAL, "it was not reserved")
        return reserved

    def close(self) -> None:
        """Free all ports."""
        for reserved in list(self._reserved.values()):
            reserved.release()

    def _released(self, reserved: ReservedPort) -> None:
        del self._reserved[reserved.protocol, reserved.address, reserved.port]
        self._budget.give(1)


def stop_listening(sock: socket.socket) -> None:
    """Turn a listening socket back into a bound one, in all processes that have it. The port stays reserved until it is
    released, with one exception: a port that the kernel chose is unbound for a moment, and another process may bind it
    meanwhile."""
    with suppress(OSError):  # UDP sockets, and sockets that do not listen, raise an error.
        sock.shutdown(socket.SHUT_RDWR)
        _bind_again(sock)


def _bind_again(sock: socket.socket) -> None:
    """Bind a socket again to the port that it had. Raise OSError if another process has the port now."""
    try:
        sock.bind(sock.getsockname())
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the socket is still bound.
            raise


def _set_options(protocol: Protocol, sock: socket.socket) -> None:
    if protocol is Protocol.TCP:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        prepare_datagrams(sock)
    make_recognizable(sock)
