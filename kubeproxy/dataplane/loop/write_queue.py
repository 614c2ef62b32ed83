"""What a turn has to say to others, said at its end, in the order that wakes them least.

Waking a process that sleeps is what a small message costs most, and one that was woken a moment ago by another message
is still awake. So a turn first reads all there is to read. Then it sends: first to endpoints, then to clients (half the
wake-ups of sending in the order of reading). And it dials last, for some of those whom it has accepted: the others'
turn is the next, when those who are connected already have been heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.tcp.connection import Flow, send_backlogs

if TYPE_CHECKING:
    from kubeproxy.dataplane.tcp.dial import Dial

_T = TypeVar("_T")

DIALS = 64
"""Begun in one turn, some milliseconds' worth, for on one host the whole handshake may be over when `connect`
returns. Two hundred who came at once held everybody else up for 25 ms."""
ROUNDS = 4
"""What is sent may make room to read more, which then is to be sent, too; but not for ever, as others wait."""


class WriteQueue:
    """Of one reactor."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._to_endpoints: list[Flow] = []
        self._to_clients: list[Flow] = []
        self._dials: list[Dial] = []
        self.to_endpoints = self._to_endpoints.append
        """Send this flow's backlog, to an endpoint, at the end of the turn."""
        self.to_clients = self._to_clients.append
        """Send this flow's backlog, to a client, at the end of the turn."""
        self.dial = self._dials.append
        """Begin this dial at the end of the turn."""
        reactor.at_every_end(self._empty)

    def _empty(self) -> None:
        left = DIALS
        for _ in range(ROUNDS):
            if self._to_endpoints:
                send_backlogs(_taken(self._to_endpoints))
            if self._to_clients:
                send_backlogs(_taken(self._to_clients))
            if self._dials and left:
                some = self._dials[:left]
                del self._dials[:left]
                left -= len(some)
                for dial in some:
                    dial.begin()
            elif not (self._to_endpoints or self._to_clients):
                break
        if self._dials or self._to_endpoints or self._to_clients:
            self._reactor.again(_at_the_next_end)


def _taken(items: list[_T]) -> list[_T]:
    taken = items[:]
    items.clear()
    return taken


def _at_the_next_end() -> None:
    """What is left is sent then."""
