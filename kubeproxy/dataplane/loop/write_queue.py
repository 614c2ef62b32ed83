"""What a turn has to say to others, said at its end, in the order that wakes them least.

Waking a process that sleeps is what a small message costs most, and one that was woken a moment ago by another message
is still awake. So a turn first reads all there is to read. Then it sends: first to endpoints, then to clients (half the
wake-ups of sending in the order of reading). And it dials last, for some of those whom it has accepted: the others'
turn is the next, when those who are connected already have been heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kubeproxy.dataplane.loop.reactor import Reactor

_T = TypeVar("_T")

DIALS = 64
"""Begun in one turn, some milliseconds' worth, for on one host the whole handshake may be over when `connect`
returns. Two hundred who came at once held everybody else up for 25 ms."""
ROUNDS = 4
"""What is sent may make room to read more, which then is to be sent, too; but not for ever, as others wait."""


class Begins(Protocol):
    """A dial that waits for the end of the turn."""

    def begin(self) -> None:
        """Begin it."""


class WriteQueue:
    """What one reactor sends and dials at the end of a turn."""

    def __init__(self, reactor: Reactor, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of the given flows, all in one call: a call for each costs more than the writing."""
        self._reactor = reactor
        self._send = send
        self._to_endpoints: list[Any] = []
        self._to_clients: list[Any] = []
        self._dials: list[Begins] = []
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
                self._send(_taken(self._to_endpoints))
            if self._to_clients:
                self._send(_taken(self._to_clients))
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
