"""A TCP listener for many frontends. The original destination of a client decides to which frontend the client belongs.

Netfilter redirects the destinations of all these frontends to one port, and connection tracking remembers each client's
original destination. Each frontend has its own balancer, counters and share of the budget. But all share one queue of
clients that are not accepted yet, so no client may be left waiting there. A client beyond the share of its frontend is
accepted and reset. (In a listener of its own it would wait in the queue.)
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterable

from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.sockets.fd_calls import BACKLOG, reset_on_close
from kubeproxy.dataplane.sockets.original_destination import key_of, reader
from kubeproxy.dataplane.tcp.dial import Dial
from kubeproxy.dataplane.tcp.listener import BATCH, DESCRIPTORS_PER_CLIENT, Listener
from kubeproxy.model import Destination


class SharedListener(Listener):
    """Accepts the clients of all frontends that have been entered. The inherited balancer and counters are not used."""

    def __init__(self, context: Context, sock: socket.socket, *, rng: random.Random) -> None:
        """Raise OSError if the kernel refuses to listen."""
        super().__init__(context, sock, rng=rng)
        self._asked_for = reader(sock.family)
        self._of: dict[bytes, Listener] = {}
        """The listener of each frontend, by its destinations in the form of `key_of`."""
        self._keys: dict[Listener, tuple[bytes, ...]] = {}
        self._closed = False

    def enter(self, listener: Listener, destinations: Iterable[Destination]) -> None:
        """Serve a frontend's clients: those with one of these original destinations. Earlier destinations of the
        frontend are no longer served."""
        self._forget(listener)
        keys = self._keys[listener] = tuple(map(key_of, destinations))
        self._of.update(dict.fromkeys(keys, listener))

    def leave(self, listener: Listener) -> None:
        """Accept the clients that are queued now, then serve no more clients of this frontend."""
        self._accept_queued()
        self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        for key in self._keys.pop(listener, ()):
            if self._of.get(key) is listener:
                del self._of[key]

    def _on_clients(self, what: int) -> None:
        for _ in range(BATCH):
            served = self._serve_next(self._context.turn_end.dial)
            if served is None:
                self._pause()
            if not served:
                return

    def _accept_queued(self) -> None:
        for _ in range(BACKLOG):
            if self._closed or not self._serve_next(lambda dial: self._context.reactor.again(dial.begin)):
                return

    def close(self) -> None:
        """Accept the clients that are already queued, then stop. Open connections continue, and the socket stays
        open."""
        super().close()
        self._closed = True

    def _serve_next(self, then: Callable[[Dial], None]) -> bool | None:
        """Accept a client and return True. Return False if no client is waiting, and None if no client can be accepted
        now."""
        if not self._context.budget.has_room(DESCRIPTORS_PER_CLIENT):  # The client's frontend is not known yet.
            return None
        try:
            client = self._next_client()
            if client is not None:
                self._serve(*client, then)
        except (OSError, MemoryError) as error:
            if isinstance(error, MemoryError):
                self._context.memory.spend()
            return None
        return client is not None

    def _serve(self, fd: int, address: tuple[str, int], then: Callable[[Dial], None]) -> None:
        listener = None
        try:
            listener = self._admit(fd)
        finally:
            if listener is None:
                os.close(fd)
        if listener is None:
            return
        try:
            then(listener.begin(fd, address))
        except BaseException:
            self._context.budget.give(DESCRIPTORS_PER_CLIENT, listener.counters.share)
            raise

    def _admit(self, fd: int) -> Listener | None:
        """Return the frontend's listener for a client, with its descriptors claimed. Return None if the client has to
        be reset."""
        asked = self._asked_for(fd)
        listener = self._of.get(asked) or self._of.get(asked[:2])
        if listener is not None:
            if self._context.budget.take(DESCRIPTORS_PER_CLIENT, listener.counters.share):
                return listener
            listener.count_refused()
        reset_on_close(fd)
        return None
