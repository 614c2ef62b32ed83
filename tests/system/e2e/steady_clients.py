"""Steady clients: new connections at a fixed rate, and long connections with constant traffic.

The clients check every byte. `steady_clients.py ADDRESS PORT RATE LONG NAME [SHORTEST LONGEST]` runs until its standard
input ends, then prints the results as JSON. NAME is a pattern of the backends' names. With SHORTEST and LONGEST, each
long connection ends by itself after so many seconds, and another one follows.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 20.0
"""How long a client waits for its answer; far longer than every guaranteed time, so that a delay is visible."""
PASSING_PATIENCE_S = 5.0
"""The same where no endpoint is silent for long: a later answer is a lost connection."""
TALK_S = 0.1
"""The pause between two words on a long connection."""


@dataclass(slots=True)
class Report:
    """The results of the clients. Times are in seconds; a failure or break begins with the time since `began`."""

    began: float = 0.0
    """By the monotonic clock."""
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    longest_gap_s: float = 0.0
    """The longest time between two answers, of any clients."""
    long_broken: list[str] = field(default_factory=list)
    long_ended: int = 0
    """Long connections that ended by themselves."""
    delays_s: list[float] = field(default_factory=list)
    """The duration of every answer that took longer than half a second."""


class Clients:
    """All clients, in one process. `name` is the pattern of every right answer."""

    patience_s = PATIENCE_S

    def __init__(self, address: str, port: int, name: str) -> None:
        self._address = (address, port)
        self._name = re.compile(name)
        self._began = self._last = time.monotonic()
        self._leaving = asyncio.Event()
        self.report = Report(began=self._began)

    async def run(self, rate: int, long: int) -> Report:
        """Run until standard input ends, and wait for the open connections."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for number in range(long):
                group.create_task(self._talk(number))
            loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda done: self._leaving.set())
            self._last = due = time.monotonic()
            while not self._leaving.is_set():
                due += 1 / rate
                group.create_task(self._ask())
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        return self.report

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.patience_s):
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    writer.write(b"name\n")
                    said = (await reader.read()).decode()
                finally:
                    writer.close()
            failure = "" if self._name.fullmatch(said) else f"answered {said!r}"
        except (OSError, TimeoutError) as error:
            failure = repr(error)
        now = time.monotonic()
        report = self.report
        if failure:
            report.failures.append(f"{began - self._began:.3f} to {now - self._began:.3f}: {failure}")
            return
        report.answered += 1
        report.slowest_s = max(report.slowest_s, now - began)
        if now - began > 0.5:
            report.delays_s.append(round(now - began, 3))
        report.longest_gap_s = max(report.longest_gap_s, now - self._last)
        self._last = now

    async def _talk(self, number: int) -> None:
        noise = random.Random(number)
        try:
            await self._words(*await asyncio.open_connection(*self._address), noise, math.inf)
        except _BREAKS as error:
            self._broken(number, error)

    async def _words(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, noise: random.Random, end: float
    ) -> None:
        """Talk on a long connection until that time or the end of the clients."""
        try:
            writer.write(b"echo\n")
            while time.monotonic() < end and not self._leaving.is_set():
                word = noise.randbytes(noise.randrange(1, 2000))
                writer.write(word)
                async with asyncio.timeout(self.patience_s):
                    said = await reader.readexactly(len(word))
                if said != word:
                    raise ValueError("other bytes came back")
                await asyncio.sleep(TALK_S)
            writer.write_eof()
            async with asyncio.timeout(self.patience_s):
                if rest := await reader.read():
                    raise ValueError(f"{len(rest)} bytes too many came back")
        finally:
            writer.close()

    def _broken(self, number: int, error: Exception) -> None:
        self.report.long_broken.append(f"{time.monotonic() - self._began:.3f}: connection {number}: {error!r}")


class PassingClients(Clients):
    """Long connections end after their time, or break, and others follow.

    One that cannot be opened counts as a failed new connection.
    """

    patience_s = PASSING_PATIENCE_S

    def __init__(self, address: str, port: int, name: str, lasting_s: tuple[float, float]) -> None:
        super().__init__(address, port, name)
        self._lasting_s = lasting_s

    async def _talk(self, number: int) -> None:
        noise = random.Random(number)
        while not self._leaving.is_set():
            began = time.monotonic()
            try:
                async with asyncio.timeout(self.patience_s):
                    reader, writer = await asyncio.open_connection(*self._address)
            except (OSError, TimeoutError) as error:
                self.report.failures.append(
                    f"{began - self._began:.3f} to {time.monotonic() - self._began:.3f}: {error!r}"
                )
                await asyncio.sleep(TALK_S)
                continue
            end = time.monotonic() + noise.uniform(*self._lasting_s)
            try:
                await self._words(reader, writer, noise, end)
                self.report.long_ended += time.monotonic() >= end
            except _BREAKS as error:
                self._broken(number, error)
                await asyncio.sleep(TALK_S)


_BREAKS = (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError)


class Crowd:
    """The clients, on a host of the laboratory; a context manager. `report` is set at its end."""

    def __init__(
        self,
        host: Any,
        address: tuple[str, int],
        *,
        rate: int = 300,
        long: int = 50,
        name: str = "pod-.",
        lasting_s: tuple[float, float] | None = None,
    ) -> None:
        arguments = (*address, rate, long, name, *(lasting_s or ()))
        self._process = host.popen(
            [sys.executable, "-m", "tests.system.e2e.steady_clients", *map(str, arguments)],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        self.report = Report()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            said, _ = self._process.communicate("", timeout=60)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.report = Report(**json.loads(said))

    def show(self, what: str) -> None:
        """Print the figures."""
        report = self.report
        print(
            f"\n{what}: {report.answered} connections answered, {len(report.failures)} failed; slowest"
            f" {report.slowest_s * 1000:.0f} ms, longest gap {report.longest_gap_s * 1000:.0f} ms; late by 0.5 s:"
            f" {len(report.delays_s)}; long connections broken: {len(report.long_broken)}"
        )


def main(address: str, port: str, rate: str, long: str, name: str, *lasting_s: str) -> None:
    """Print the report of these clients."""
    clients = Clients(address, int(port), name)
    if lasting_s:
        shortest, longest = map(float, lasting_s)
        clients = PassingClients(address, int(port), name, (shortest, longest))
    print(json.dumps(asdict(asyncio.run(clients.run(int(rate), int(long))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
