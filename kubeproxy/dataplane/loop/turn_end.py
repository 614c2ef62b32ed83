"""The writes and dials of a reactor's turn, which are carried out at its end.

Most of the cost of a small message is waking the process that receives it. A process that another message woke a moment
ago is still awake. So a turn first reads everything. Then it writes, first to endpoints and then to clients; this
halves the wake-ups, compared with writing in the order of reading. It dials last, at most `DIALS` times. For other
accepted clients it dials in the next turn, after the events of open connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kubeproxy.dataplane.loop.reactor import Reactor

_T = TypeVar("_T")

DIALS = 64
"""The number of dials begun in one turn, some milliseconds' worth. On one host the whole handshake may be over when
`connect` returns. Two hundred clients that came at once held up all others for 25 ms."""
ROUNDS = 4
"""The number of rounds of writing. A write may make room to read more, which is then also to be written. The number is
bounded because other work waits."""


class Begins(Protocol):
    """A dial that waits for the end of the turn. It is one of `tcp`, which this folder must not import."""

    def begin(self) -> None:
        """Begin the dial."""


class TurnEnd:
    """Writes and dials that one reactor carries out at the end of a turn."""

    def __init__(self, reactor: Reactor, send: Callable[[list[Any]], None]) -> None:
        """`send` writes the backlogs of several flows, because a call for each flow costs more than the write."""
        self._reactor = reactor
        self._send = send
        self._to_endpoints: list[Any] = []
        self._to_clients: list[Any] = []
        self._dials: list[Begins] = []
        self.to_endpoints = self._to_endpoints.append
        """Writes a flow's backlog to an endpoint at the end of the turn."""
        self.to_clients = self._to_clients.append
        """Writes a flow's backlog to a client at the end of the turn."""
        self.dial = self._dials.append
        """Begins a dial at the end of the turn."""
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
    """Do nothing, because the end of the next turn writes the rest."""
