"""Steady traffic to a Service: new connections at a fixed rate, kept ones beside them; what was lost is counted.

`python -m tests.system.cluster.traffic ADDRESS PORT RATE KEPT` runs until its standard input ends, then prints a
`Tally` as JSON. The server is `tests.system.e2e.backend`, and its name begins with that of the Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.support.lab import Host
from tests.system.cluster.kept_connections import KINDS, PATIENCE_S, KeptConnection, kind_of
from tests.system.cluster.node import ROOT

NAME: Final = b"web-"
"""How the server's name begins."""


@dataclass(slots=True)
class Tally:
    """What the clients met. Times are those of the monotonic clock, which all processes share."""

    answered: int = 0
    lost: list[tuple[float, str]] = field(default_factory=list)
    """Each with its beginning and the error."""
    slowest_s: float = 0.0
    kept: dict[str, int] = field(default_factory=dict)
    """Kept connections, by kind."""
    broken: list[tuple[float, str, str]] = field(default_factory=list)
    """Kept connections that ended before the clients did, with the time, the kind and the error."""
    longest_silence_s: dict[str, float] = field(default_factory=dict)
    """The longest that a kept connection of a kind waited for bytes that were due."""
    late_s: float = 0.0
    """The longest that the clients themselves were held up: a busy machine's part of every other time."""


class Clients:
    """All clients of one place, in one process."""

    def __init__(self, address: str, port: int) -> None:
        self._address = (address, port)
        self._leaving = asyncio.Event()
        self.tally = Tally()

    async def run(self, rate: int, kept: int) -> Tally:
        """Run until standard input ends, and wait for the open connections."""
        self.tally.kept = dict(Counter(map(kind_of, range(kept))))
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda done: self._leaving.set())
        async with asyncio.TaskGroup() as group:
            for number in range(kept):
                group.create_task(self._keep(number))
            due = time.monotonic()
            while not self._leaving.is_set():
                due += 1 / rate
                group.create_task(self._ask())
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self.tally.late_s = max(self.tally.late_s, time.monotonic() - due)
        return self.tally

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S), _connected(self._address) as (reader, writer):
                writer.write(b"name\n")
                if not (said := await reader.read()).startswith(NAME):
                    raise ValueError(f"{said!r} came")
        except _ERRORS as error:
            self.tally.lost.append((began, _named(error)))
            return
        self.tally.answered += 1
        self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - began)

    async def _keep(self, number: int) -> None:
        kind, silences = kind_of(number), self.tally.longest_silence_s
        try:
            async with _connected(self._address) as (reader, writer):
                kept = KeptConnection(reader, writer, number, self._leaving)
                try:
                    await KINDS[kind](kept)
                finally:
                    silences[kind] = max(silences.get(kind, 0.0), kept.longest_silence_s)
        except _ERRORS as error:
            self.tally.broken.append((time.monotonic(), kind, repr(error)))


_ERRORS = (OSError, ValueError, EOFError, TimeoutError)


def _named(error: Exception) -> str:
    """An error by its name, with its text where the name says nothing."""
    return f"OSError: {error}" if type(error) is OSError else type(error).__name__


@contextlib.asynccontextmanager
async def _connected(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()


class Traffic:
    """The clients of one place, running; `end` returns their tally."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> Tally:
        """End the clients and return what they met."""
        output, _ = self._process.communicate("", timeout=120)
        return Tally(**json.loads(output))


def start(host: Host, address: tuple[str, int], *, rate: int, kept: int) -> Traffic:
    """Start clients on a host."""
    arguments = [*address, rate, kept]
    command = [sys.executable, "-m", "tests.system.cluster.traffic", *map(str, arguments)]
    process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return Traffic(process)


def main(address: str, port: str, rate: str, kept: str) -> None:
    """Print the tally of these clients."""
    print(json.dumps(asdict(asyncio.run(Clients(address, int(port)).run(int(rate), int(kept))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
