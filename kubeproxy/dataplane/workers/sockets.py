"""The sockets of one frontend that several workers serve, in the hands of the control process.

A *plain* frontend has one socket for each worker, which only the worker keeps: the kernel deals connections out, and
when a worker dies, to the others. What the control process has is the reservation, which never listens.

Where a client must always meet the same worker - UDP sessions, affinity - the sockets are *kept*: the control process
holds all of them, the reservation being the first, so that the group keeps its shape when a worker dies, and the next
one takes over the very same socket with whatever waits in it. So are they where there is one worker only, for then
there is nobody else to deal to.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence

from kubeproxy.dataplane.balancing.affinity import Affinity, pieces
from kubeproxy.dataplane.messages import Binding, Listen, RestoreBindings, SetEndpoints
from kubeproxy.dataplane.resources.fd_budget import DescriptorBudget
from kubeproxy.dataplane.sockets.options import BACKLOG
from kubeproxy.dataplane.sockets.reserved_ports import HeldPort, stop_listening
from kubeproxy.dataplane.sockets.reuseport import attach, place, program
from kubeproxy.model import Protocol, family_of


class FrontendSockets:
    """What is known of a frontend that workers serve, and its sockets."""

    def __init__(self, listen: Listen, held: HeldPort, *, workers: int, budget: DescriptorBudget) -> None:
        self.listen = listen
        self.endpoints: SetEndpoints | None = None
        self.confirmed = False
        """Whether the workers have said that they listen."""
        self._held = held
        self._workers = workers
        self._budget = budget
        self._kept: list[socket.socket] = []
        self._affinity = [Affinity() for _ in range(workers)]
        """What each worker knows of its clients, as last heard: the next one in its place is told."""
        self._beside = 0
        """How many came before the kept ones in their group."""

    def told(self, endpoints: SetEndpoints) -> None:
        """The workers know these endpoints."""
        self.endpoints = endpoints
        for affinity in self._affinity:
            affinity.set_timeout(endpoints.affinity_timeout_s)

    def learn(self, worker: int, bindings: Sequence[Binding], now: float) -> None:
        """A worker has bound clients."""
        self._affinity[worker].learn(bindings, now)

    def restore_bindings(self, bindings: Sequence[Binding], now: float) -> dict[int, RestoreBindings]:
        """Clients of another process: what each worker is to be told, who will meet them."""
        shares: dict[int, list[Binding]] = {}
        for binding in bindings:
            shares.setdefault(place(binding.client, count=self._workers), []).append(binding)
        for worker, share in shares.items():
            self._affinity[worker].restore_bindings(share, now)
        return {worker: RestoreBindings(self.listen.frontend, tuple(share)) for worker, share in shares.items()}

    def remembered(self, worker: int, now: float) -> Iterator[RestoreBindings]:
        """The clients that this worker has bound, as last heard."""
        return pieces(self.listen.frontend, self._affinity[worker].bindings(now))

    @property
    def kept(self) -> bool:
        """Whether the sockets are."""
        return bool(self._kept)

    def must_keep(self, endpoints: SetEndpoints | None) -> bool:
        """Whether the sockets have to be, with these endpoints."""
        affinity = endpoints is not None and endpoints.affinity_timeout_s is not None
        return self._workers == 1 or affinity or self.listen.protocol is Protocol.UDP

    def keep(self, *, beside: int = 0) -> None:
        """Keep the sockets from now on. `beside` so many that listen already and will leave, which no client gets any
        more. They listen at once: who comes before a worker takes them over waits. OSError when the kernel says no."""
        try:
            if self._workers > 1:
                self._held.share(True)
            self._kept.append(self._held.lend())
            for _ in range(1, self._workers):
                self._kept.append(self._open_another())
            if self.listen.protocol is Protocol.TCP:
                for sock in self._kept:
                    sock.listen(BACKLOG)
            self._beside = beside
            self._attach(first=beside, count=len(self._kept))
        except BaseException:
            self.close()
            raise

    def narrow(self) -> None:
        """Those beside are about to leave, and the last of the group takes the place of each that does: the only one
        whose place is sure meanwhile is the first kept one, who gets all clients until `spread`."""
        self._attach(first=self._beside, count=1)

    def spread(self) -> None:
        """The kept sockets are alone now: let clients meet them by their address."""
        self._beside = 0
        self._attach(first=0, count=len(self._kept))

    def _attach(self, *, first: int, count: int) -> None:
        if len(self._kept) > 1:
            attach(self._kept[0], program(family_of(self.listen.address), count=count, first=first))

    def socket_for(self, worker: int) -> socket.socket:
        """The worker's socket, to be passed to it and then given to `passed`. OSError when the kernel says no."""
        return self._kept[worker] if self._kept else self._open_another()

    def passed(self, sock: socket.socket) -> None:
        """The worker has it (or never will)."""
        if sock not in self._kept:
            self._close(sock)

    def close(self) -> None:
        """Nobody listens any more; the port stays held."""
        kept, self._kept = self._kept, []
        for sock in kept:
            stop_listening(sock)
            if sock is not self._held.sock:
                self._close(sock)
        if self._held.sock.fileno() >= 0:
            self._held.share(False)

    def _open_another(self) -> socket.socket:
        if not self._budget.take(1):
            raise OSError(errno.EMFILE, "all descriptors are in use; raise the limit on open files")
        try:
            return self._held.open_another()
        except BaseException:
            self._budget.give(1)
            raise

    def _close(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            sock.close()
            self._budget.give(1)
