"""UDP clients that keep their sockets across changes of the Service."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.system.e2e.full_services import CELLS, Whole, udp
from tests.system.e2e.stage import Stage, until

WAYS = tuple(cell for cell in CELLS if cell.protocol == "UDP")
SOON_S = 3.0
"""One second, and some more for a busy machine; a stale flow would last half a minute at least."""


class Loyal:
    """A client that keeps its sockets, with one for every way to a Service."""

    def __init__(self, stage: Stage, whole: Whole, held: ExitStack) -> None:
        self._turn = 0
        self._sockets = {
            str(cell): held.enter_context(udp(cell.host(stage), whole.address(cell.kind, cell.family), timeout_s=0.1))
            for cell in WAYS
        }
        self._pool = held.enter_context(ThreadPoolExecutor(len(WAYS)))

    def unserved(self) -> set[str]:
        """The ways without an answer at the moment."""
        self._turn += 1
        said = f"{self._turn}".encode()

        def served(sock: socket.socket) -> bool:
            try:
                sock.send(said)
                while sock.recv(100) != said:
                    pass
            except OSError:
                return False
            return True

        results = self._pool.map(served, self._sockets.values())
        return {way for way, was in zip(self._sockets, results, strict=True) if not was}

    def await_service(self, why: str) -> None:
        """Wait until every way leads to the Service."""
        seen: list[set[str]] = []

        def all_served() -> bool:
            seen.append(self.unserved())
            return not seen[-1]

        try:
            until(all_served, why, within_s=SOON_S)
        except AssertionError as error:
            raise AssertionError(f"{why}: unserved are {sorted(seen[-1])}") from error

    def await_silence(self, why: str) -> None:
        """Wait until no way leads to the Service."""
        until(lambda: len(self.unserved()) == len(WAYS), why)
