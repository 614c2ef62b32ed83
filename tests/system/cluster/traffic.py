"""Steady traffic to a Service: new connections at a fixed rate, kept-alive ones beside them; what was lost is counted.

`python -m tests.system.cluster.traffic ADDRESS PORT RATE KEPT` runs until its standard input ends, then prints a
`Tally` as JSON. The server is agnhost's `netexec`, which answers GET /hostname with the name of its pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.support.lab import Host
from tests.system.cluster.node import ROOT

PATIENCE_S: Final = 10.0
"""An answer that comes later is a lost connection."""
PAUSE_S: Final = 0.5
"""Between two requests on a kept connection."""


@dataclass(slots=True)
class Tally:
    """What the clients met. Times are those of the monotonic clock, which all processes share."""

    answered: int = 0
    lost: list[tuple[float, str]] = field(default_factory=list)
    """Each with its beginning and the error."""
    slowest_s: float = 0.0
    kept: int = 0
    broken: list[tuple[float, str]] = field(default_factory=list)
    """Kept connections that ended before the clients did, with the time and the error."""
    longest_silence_s: float = 0.0
    """The longest that a kept connection took for an answer."""


class Clients:
    """All clients of one place, in one process."""

    def __init__(self, address: str, port: int) -> None:
        self._address = (address, port)
        self._leaving = asyncio.Event()
        self.tally = Tally()

    async def run(self, rate: int, kept: int) -> Tally:
        """Run until standard input ends, and wait for the open connections."""
        self.tally.kept = kept
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda done: self._leaving.set())
        async with asyncio.TaskGroup() as group:
            for _ in range(kept):
                group.create_task(self._keep())
            due = time.monotonic()
            while not self._leaving.is_set():
                due += 1 / rate
                group.create_task(self._ask())
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        return self.tally

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                async with _connected(self._address) as (reader, writer):
                    await _request(reader, writer)
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            self.tally.lost.append((began, type(error).__name__))
            return
        self.tally.answered += 1
        self.tally.slowest_s = max(self.tally.slowest_s, time.monotonic() - began)

    async def _keep(self) -> None:
        try:
            async with _connected(self._address) as (reader, writer):
                while not self._leaving.is_set():
                    began = time.monotonic()
                    async with asyncio.timeout(PATIENCE_S):
                        await _request(reader, writer)
                    self.tally.longest_silence_s = max(self.tally.longest_silence_s, time.monotonic() - began)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._leaving.wait(), PAUSE_S)
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            self.tally.broken.append((time.monotonic(), type(error).__name__))


@contextlib.asynccontextmanager
async def _connected(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Ask once, and return the name of the pod that answered."""
    writer.write(b"GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError(head.decode(errors="replace"))
    return await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))


class Traffic:
    """The clients of one place, running; `end` returns their tally."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> Tally:
        """End the clients and return what they met."""
        output, _ = self._process.communicate("", timeout=60)
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
