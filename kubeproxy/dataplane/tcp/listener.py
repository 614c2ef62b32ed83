"""The TCP listener of one frontend. It accepts clients in batches, and starts a dial for each."""

from __future__ import annotations

import errno
import os
import random
import socket

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.dataplane.context import Context, FrontendCounters
from kubeproxy.dataplane.loop.reactor import LEVEL, Timer
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.dataplane.sockets.connect import set_stream_options
from kubeproxy.dataplane.sockets.fd_calls import BACKLOG, keep_alive
from kubeproxy.dataplane.sockets.loop_prevention import hops_left, hops_of, save_syns
from kubeproxy.dataplane.tcp.dial import Dial
from kubeproxy.model import Address, Target

BATCH = 32
"""The largest number of clients accepted per event. Other listeners are served before the next batch."""
TURNS_BUSY = 2
"""A listener that had clients within this many turns accepts until its queue is empty. Any other listener accepts one
client, and is reported again if there are more. The reason: to find the queue empty costs as much as making a socket,
because the kernel makes one before it looks."""
PAUSE_S = 0.1
"""The longest pause, in seconds, of a listener for which there are no descriptors or no memory. It ends earlier when
descriptors are returned."""
CLIENT_ERRORS = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.EPERM,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOPROTOOPT,
        errno.ENONET,
        errno.EOPNOTSUPP,
    }
)
"""The errors of accept(2) that concern a single client: it has already closed, or a firewall has refused it (EPERM)."""
DESCRIPTORS_PER_CLIENT = 2


class Listener:
    """Accepts a frontend's clients on a bound socket, which the listener does not own, or gets them from a shared
    listener."""

    def __init__(self, context: Context, sock: socket.socket | None, *, rng: random.Random) -> None:
        """Raise OSError if the kernel refuses to listen. Without a socket, clients are passed to `begin`."""
        self._context = context
        self._timer: Timer | None = None
        self._paused = False
        self._last_turn = -1 - TURNS_BUSY
        """The last turn in which a client came."""
        self._preserve: frozenset[Target] = frozenset()
        self.balancer = Balancer(rng=rng, probes_beside=True, shared=context.shared_rows, failing=context.failing)
        self.counters = FrontendCounters()
        if sock is not None:
            self._sock = sock
            set_stream_options(sock)
            save_syns(sock)
            keep_alive(sock.fileno(), context.tune.keepalive_s)
            sock.setblocking(False)
            sock.listen(BACKLOG)
            context.reactor.add(sock.fileno(), self._on_clients, LEVEL)

    def set_endpoints(self, message: SetEndpoints) -> None:
        """Replace the endpoints. Open connections are not affected."""
        self.balancer.update(message.endpoints, message.affinity_timeout_s, message.balancing)
        self.balancer.share(message.endpoints, message.columns)
        self._preserve = message.preserve

    def _on_clients(self, what: int) -> None:
        budget, share = self._context.budget, self.counters.share
        turn, before = self._context.reactor.turn_number, self._last_turn
        self._last_turn = turn
        for _ in range(BATCH if turn - before <= TURNS_BUSY else 1):
            if not budget.take(DESCRIPTORS_PER_CLIENT, share):
                self._pause()
                return
            try:
                dial = self._accept()
            except (OSError, MemoryError) as error:
                if isinstance(error, MemoryError):
                    self._context.memory.spend()
                # Return the descriptors first. If they were returned during the pause, that would end it at once.
                budget.give(DESCRIPTORS_PER_CLIENT, share)
                self._pause()
                return
            if dial is None:
                budget.give(DESCRIPTORS_PER_CLIENT, share)
                return
            # Start dials at the end of the turn, when the whole batch has been accepted.
            self._context.turn_end.dial(dial)

    def _accept(self) -> Dial | None:
        """Accept a client and return its dial, or None if no client is waiting. Raise OSError or MemoryError if this
        host cannot accept a client now."""
        client = self._next_client()
        return None if client is None else self.begin(*client)

    def _next_client(self) -> tuple[int, tuple[str, int]] | None:
        """Return the descriptor and the address of a client, or None if no client is waiting. Raise OSError if none can
        be accepted now."""
        while True:
            try:
                # Only the descriptor is needed, so accept(), which makes a socket object, is not used.
                fd, address = self._sock._accept()  # type: ignore[attr-defined]
                return fd, address[:2]  # IPv6 addresses have two more fields.
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in CLIENT_ERRORS:
                    raise

    def begin(self, fd: int, address: tuple[str, int]) -> Dial:
        """Create the dial for an accepted client whose descriptors are claimed. If this host cannot serve the client
        now, close it and raise OSError or MemoryError."""
        try:
            os.set_blocking(fd, False)
            dial = Dial(
                self._context,
                self.counters,
                self.balancer,
                client=fd,
                client_address=address,
                hops=hops_left(hops_of(fd)),
                preserve=self._preserve,
                entry=self._entry_of(address) if self._context.tune.access_log else None,
            )
        except BaseException:
            os.close(fd)
            raise
        self.counters.accepted += 1
        self._context.touched.add(self.counters)
        return dial

    def count_refused(self) -> None:
        """Count a client that is reset because the frontend's share of descriptors is used up."""
        self.counters.accepted += 1
        self.counters.unable += 1
        self._context.touched.add(self.counters)

    def _entry_of(self, address: tuple[str, int]) -> Entry | None:
        name = self.counters.frontend
        return None if name is None else Entry(name, Target(Address(address[0]), address[1]))

    def _pause(self) -> None:
        """Leave clients in the queue until descriptors are returned, or for at most `PAUSE_S` seconds."""
        if self._paused:
            return
        self._paused = True
        self._context.reactor.watch(self._sock.fileno(), 0)
        self._context.budget.call_when_free(self._resume)
        self._timer = self._context.reactor.after(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
        self._context.reactor.watch(self._sock.fileno(), LEVEL)

    def close(self) -> None:
        """Accept the clients that are already queued, then stop. Open connections continue, and the socket stays
        open."""
        if self._timer is not None:
            self._timer.cancel()
        self._paused = False
        self._context.reactor.remove(self._sock.fileno())
        self._accept_queued()

    def _accept_queued(self) -> None:
        budget, share = self._context.budget, self.counters.share
        while budget.take(DESCRIPTORS_PER_CLIENT, share):
            try:
                dial = self._accept()
            except (OSError, MemoryError):
                dial = None
            if dial is None:
                budget.give(DESCRIPTORS_PER_CLIENT, share)
                break
            self._context.reactor.again(dial.begin)
