"""Manages the sockets of one frontend for all workers, in the control process.

An *unpinned* frontend has one socket for each worker, which is open only in that worker. The kernel distributes
connections over these sockets, and over the remaining ones if a worker dies. The control process keeps only the socket
that reserves the port, which never listens.

With session affinity, and for UDP, a client must always reach the same worker. Then the sockets are *pinned*: the
control process keeps all of them open, and the socket that reserves the port is the first of them. So the group keeps
its order when a worker dies, and the replacement gets the same socket with the clients queued in it. If there is only
one worker its sockets are pinned, too, because no other worker could take its clients.

A frontend that has joined a *shared* listener has no sockets of its own.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from kubeproxy.dataplane.balancing.affinity import Affinity, pieces
from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.messages import Binding, Join, Listen, RestoreBindings, SetEndpoints
from kubeproxy.dataplane.sockets.fd_calls import BACKLOG
from kubeproxy.dataplane.sockets.port_reservation import ReservedPort, stop_listening
from kubeproxy.dataplane.sockets.reuseport_program import attach, place, program
from kubeproxy.model import Protocol, family_of

_Begin = TypeVar("_Begin", bound=Listen | Join)


class ServedFrontend(Generic[_Begin]):
    """A frontend's endpoints and affinity bindings in all workers."""

    def __init__(self, begin: _Begin, *, workers: int) -> None:
        self.begin: _Begin = begin
        """The message that a worker gets first for this frontend."""
        self.endpoints: SetEndpoints | None = None
        self.confirmed = False
        """Whether the workers have confirmed that they listen."""
        self._workers = workers
        self._affinity = [Affinity() for _ in range(workers)]
        """The affinity bindings of each worker, as last reported. If a worker is replaced, the new one gets them."""

    @property
    def serves_others(self) -> bool:
        """Return whether this is a shared listener, which has no clients of its own."""
        return isinstance(self.begin, Listen) and self.begin.shared

    def set_endpoints(self, endpoints: SetEndpoints) -> None:
        """Record the endpoints that were sent to the workers."""
        self.endpoints = endpoints
        for affinity in self._affinity:
            affinity.set_timeout(endpoints.affinity_timeout_s)

    def learn(self, worker: int, bindings: Sequence[Binding], now: float) -> None:
        """Record the bindings that a worker has reported."""
        self._affinity[worker].learn(bindings, now)

    def restore_bindings(self, bindings: Sequence[Binding], now: float) -> dict[int, RestoreBindings]:
        """Record the bindings of another process. Return each worker's part of them, by the program that assigns
        clients to workers."""
        shares: dict[int, list[Binding]] = {}
        for binding in bindings:
            shares.setdefault(place(binding.client, count=self._workers), []).append(binding)
        for worker, share in shares.items():
            self._affinity[worker].restore_bindings(share, now)
        return {worker: RestoreBindings(self.begin.frontend, tuple(share)) for worker, share in shares.items()}

    def bindings_of(self, worker: int, now: float) -> Iterator[RestoreBindings]:
        """Yield the bindings of a worker as last reported."""
        return pieces(self.begin.frontend, self._affinity[worker].bindings(now))

    def socket_for(self, worker: int) -> socket.socket | None:
        """Return the socket to send to a worker, or None if there is none. Pass it to `close_sent` afterwards. Raise
        OSError if the kernel refuses."""
        return None

    def close_sent(self, sock: socket.socket) -> None:
        """Close a socket that has been sent to a worker, unless it is pinned."""

    def close(self) -> None:
        """Stop listening. The port stays reserved."""


class FrontendSockets(ServedFrontend[Listen]):
    """A listener, of one frontend or shared, with its sockets."""

    def __init__(self, listen: Listen, reserved: ReservedPort, *, workers: int, budget: DescriptorBudget) -> None:
        super().__init__(listen, workers=workers)
        self._reserved = reserved
        self._budget = budget
        self._pinned: list[socket.socket] = []
        self._preceding = 0
        """The number of sockets that come before the pinned ones in their group."""

    @property
    def pinned(self) -> bool:
        """Return whether the sockets are pinned."""
        return bool(self._pinned)

    def must_pin(self, endpoints: SetEndpoints | None) -> bool:
        """Return whether these endpoints require pinned sockets."""
        affinity = endpoints is not None and endpoints.affinity_timeout_s is not None
        return self._workers == 1 or affinity or self.begin.pinned or self.begin.protocol is Protocol.UDP

    def pin(self, *, preceding: int = 0) -> None:
        """Open the pinned sockets, which get all new clients. `preceding` unpinned sockets are already listening and
        will be closed. The pinned sockets listen at once, so clients wait in their queues until the workers get them.
        Raise OSError if the kernel refuses."""
        try:
            if self._workers > 1:
                self._reserved.share(True)
            self._pinned.append(self._reserved.prepare())
            for _ in range(1, self._workers):
                self._pinned.append(self._open_another())
            if self.begin.protocol is Protocol.TCP:
                for sock in self._pinned:
                    sock.listen(BACKLOG)
            self._preceding = preceding
            self._attach(first=preceding, count=len(self._pinned))
        except BaseException:
            self.close()
            raise

    def assign_to_first(self) -> None:
        """Assign all clients to the first pinned socket while the preceding sockets are being closed. Each time one
        closes, the last socket of the group gets its index. Only the first pinned socket keeps its index."""
        self._attach(first=self._preceding, count=1)

    def assign_by_address(self) -> None:
        """Assign clients to the pinned sockets by address, now that the preceding sockets are closed."""
        self._preceding = 0
        self._attach(first=0, count=len(self._pinned))

    def _attach(self, *, first: int, count: int) -> None:
        if len(self._pinned) > 1:
            attach(self._pinned[0], program(family_of(self.begin.address), count=count, first=first))

    def socket_for(self, worker: int) -> socket.socket:
        """See `ServedFrontend.socket_for`."""
        return self._pinned[worker] if self._pinned else self._open_another()

    def close_sent(self, sock: socket.socket) -> None:
        """See `ServedFrontend.close_sent`."""
        if sock not in self._pinned:
            self._close(sock)

    def close(self) -> None:
        """See `ServedFrontend.close`."""
        pinned, self._pinned = self._pinned, []
        for sock in pinned:
            stop_listening(sock)
            if sock is not self._reserved.sock:
                self._close(sock)
        if self._reserved.sock.fileno() >= 0:
            self._reserved.share(False)

    def _open_another(self) -> socket.socket:
        if not self._budget.take(1):
            raise OSError(errno.EMFILE, "all descriptors are in use; raise the limit on open files")
        try:
            return self._reserved.open_another()
        except BaseException:
            self._budget.give(1)
            raise

    def _close(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            sock.close()
            self._budget.give(1)
