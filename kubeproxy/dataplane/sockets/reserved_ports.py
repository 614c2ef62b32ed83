"""Proxy ports, held: bound but not yet listening, so that no other process gets one between two of our frontends."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from kubeproxy.dataplane.sockets.client_address import make_recognizable
from kubeproxy.dataplane.sockets.udp_options import prepare as prepare_datagrams
from kubeproxy.model import Address, Protocol

KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class HeldPort:
    """A bound socket. Whoever listens on it borrows it by `lend`; the port is free again after `release`."""

    def __init__(
        self,
        protocol: Protocol,
        address: Address,
        port: int,
        *,
        on_release: Callable[[HeldPort], None],
        claim: bool = False,
        shared: bool = False,
    ) -> None:
        """Port 0 lets the kernel choose. OSError when the port is taken, or the address is none of this host's. For
        `claim` and `shared` see `PortReserver`."""
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
            # A connection of ours that lingers in TIME_WAIT must not keep its port from us after a restart. Where the
            # kernel chooses, it chooses another; and so asked it would look for one in half of its range only, and go
            # through all of that each time once it is full: 10,000 sockets took 3.8 s instead of 0.1.
            shared = protocol is Protocol.TCP and port != 0
            if shared:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind((address, port))
            if shared:
                # And while nobody listens, Linux lets any socket that says the same bind here too, and even listen.
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except BaseException:
            self.sock.close()
            raise
        self.port: int = self.sock.getsockname()[1]
        self._lent = False

    def lend(self) -> socket.socket:
        """The socket, to be listened on now: then nobody else gets the port anyway, and the connections accepted here
        inherit that they do not keep it from us after a restart. OSError when the port was lost (see `stop_listening`).
        """
        if self._lent:
            _bind_again(self.sock)
        self._lent = True
        _prepare(self.protocol, self.sock)
        return self.sock

    def open_another(self) -> socket.socket:
        """One more socket at this port, to be listened on now, for another process. OSError as for any socket."""
        self.share(True)
        sock = socket.socket(self.sock.family, KINDS[self.protocol] | socket.SOCK_NONBLOCK)
        try:
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _prepare(self.protocol, sock)
            sock.bind((self.address, self.port))
        except BaseException:
            sock.close()
            raise
        return sock

    def share(self, on: bool) -> None:
        """Whether another process of ours may hold it, too."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, on)

    def release(self) -> None:
        """Give it back. Twice is fine."""
        if self.sock.fileno() >= 0:
            self.sock.close()
            self._on_release(self)


def stop_listening(sock: socket.socket) -> None:
    """Back to bound-only, whoever else has the socket: the port stays held until its owner releases it. Or nearly so: a
    port that the kernel chose it takes back at this moment, and somebody may be quicker than we are."""
    with suppress(OSError):  # UDP knows no listening, and who never listened cannot stop
        sock.shutdown(socket.SHUT_RDWR)
        _bind_again(sock)


def _bind_again(sock: socket.socket) -> None:
    """At the port that it had. OSError when that is somebody else's by now."""
    try:
        sock.bind(sock.getsockname())
    except OSError as error:
        if error.errno != errno.EINVAL:  # it has it still
            raise


def _prepare(protocol: Protocol, sock: socket.socket) -> None:
    if protocol is Protocol.TCP:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        prepare_datagrams(sock)
    make_recognizable(sock)
