"""Takes over connections from a worker of another instance."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.movable import Frozen, State
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.move_protocol import Load, Receipt
from kubeproxy.dataplane.workers.protocol import GarbledError


class Adopter:
    """Takes over the connections that arrive through one channel, until the other worker closes it."""

    def __init__(self, reactor: Reactor, engine: Engine, sock: socket.socket, on_end: Callable[[], None]) -> None:
        """`on_end` is called when the channel is closed."""
        self._reactor = reactor
        self._engine = engine
        self._channel: Channel[Load] = Channel(sock, Load)
        self._on_end = on_end
        reactor.add(sock.fileno(), self._on_event, LEVEL)
        # The other worker may already have ended, but its last load may still be in the channel.
        with contextlib.suppress(OSError):
            self._channel.send(Receipt(0, engine.room))

    def _on_event(self, what: int) -> None:
        try:
            for load, descriptors in self._channel.receive():
                self._take(load, descriptors)
        except (GarbledError, EOFError, OSError, MemoryError):
            self._end()

    def _take(self, load: Load, descriptors: Sequence[int]) -> None:
        """Take over a load: claim what it needs, send the receipt, and only then use the connections."""
        claimed: list[Frozen] = []
        refused: list[int] = []
        at = 0
        if sum(state.descriptors for state in load.connections) != len(descriptors):
            _close(descriptors)
            raise GarbledError("other descriptors than the load needs")
        for place, state in enumerate(load.connections):
            own = descriptors[at : at + state.descriptors]
            at += state.descriptors
            if (frozen := self._claim(state, own)) is not None:
                claimed.append(frozen)
            else:
                refused.append(place)
                _close(own)
        if not self._commits(Receipt(load.number, self._engine.room, tuple(refused))):
            for frozen in claimed:
                frozen.close()
            raise EOFError
        for frozen in claimed:
            with contextlib.suppress(MemoryError):  # The others have to continue.
                self._engine.adopt(frozen)

    def _claim(self, state: State, descriptors: Sequence[int]) -> Frozen | None:
        try:
            return self._engine.claim(state, descriptors)
        except MemoryError:  # The connection stays with the sender.
            return None

    def _commits(self, receipt: Receipt) -> bool:
        """Send a receipt. Return whether this process has to continue the connections. That is so if the receipt is in
        the kernel's buffer, or if the sender has died. A sender that gives up no longer reads, and leaves a byte after
        the load."""
        try:
            self._channel.send(receipt)
        except OSError:
            return self._channel.ended
        return not self._channel.congested

    def _end(self) -> None:
        if self._channel.sock.fileno() >= 0:
            self._reactor.remove(self._channel.sock.fileno())
            self._channel.close()
            self._on_end()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
