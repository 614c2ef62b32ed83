"""Makes the writes and dials of a reactor's turn, at the end of the turn.

Most of the cost of a small message is waking the process that receives it. A process that was woken a moment ago is
still awake. So a turn first reads everything. Then it writes, first to endpoints and then to clients. Compared with
writing in the order of reading, this halves the number of wake-ups. Dials come last, at most `DIALS` per turn. If more
clients were accepted, their dials begin in the next turn, after the events of open connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kubeproxy.dataplane.loop.reactor import Reactor

_T = TypeVar("_T")

DIALS = 64
"""The largest number of dials begun in one turn, which takes some milliseconds. (On one host the whole handshake may be
over when `connect` returns.) Without the limit, two hundred simultaneous clients held up all others for 25 ms."""
ROUNDS = 4
"""The largest number of rounds of writing. A write may make room for reading more, which then has to be written,
too."""


class Begins(Protocol):
    """A dial that waits for the end of the turn. It is one of `tcp`, which this folder must not import."""

    def begin(self) -> None:
        """Start the dial."""


class TurnEnd:
    """Collects the writes and dials that one reactor makes at the end of a turn."""

    def __init__(self, reactor: Reactor, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of several flows. A call for each flow would cost more than the write itself."""
        self._reactor = reactor
        self._send = send
        self._to_endpoints: list[Any] = []
        self._to_clients: list[Any] = []
        self._dials: list[Begins] = []
        self.to_endpoints = self._to_endpoints.append
        """Schedules the writing of a flow's backlog to an endpoint."""
        self.to_clients = self._to_clients.append
        """Schedules the writing of a flow's backlog to a client."""
        self.dial = self._dials.append
        """Schedules the start of a dial."""
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
    """Do nothing. The end of the next turn writes the rest."""
