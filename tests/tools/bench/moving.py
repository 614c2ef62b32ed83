"""How long connections are still while they move to another instance, and how long all of it takes.

``python -m tests.tools.bench.moving [--connections N] [--streams N] [--re-exec]``, as root. With ``--alone`` it only
prints the CPU time of a move, between two engines of one process. Some connections are quiet,
some ask and are answered every few milliseconds, and some are streams at full speed that come back through an echo. All
bytes are compared. It prints the longest time that each talking connection had no answer while the connections moved,
beside the same in the five seconds before, and while the new instance started: on a machine that does other work most
of it is that work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tests.dataplane.workers.test_move_sender import Move
from tests.support.lab import Daemon, PodLinks
from tests.system.e2e.stage import QUICK, VIP, make_stage, until
from tests.tools.bench.starting import cpu_s

TALKING = 100
TALK_S = 0.02
BEFORE_S = 5.0
GAP_S = 0.001
"""Shorter gaps are not noted."""
BLOCK = os.urandom(1 << 16)


class Clients:
    """All clients, in a process of its own on the client's host."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.gaps: list[list[tuple[float, float]]] = []
        """The gaps of each talking connection: when the answer came, as Unix time, and for how long there was none."""
        self.moved_bytes = 0
        self._leaving = asyncio.Event()

    async def run(self, quiet: int, streams: int) -> None:
        """Open all connections, say so, and go on until a line comes by standard input."""
        loop = asyncio.get_running_loop()
        kept = []
        for at_once in [min(100, quiet - begun) for begun in range(0, quiet, 100)]:
            kept += await asyncio.gather(*(self._open() for _ in range(at_once)))
        async with asyncio.TaskGroup() as group:
            for _ in range(TALKING):
                group.create_task(self._guarded(self._talk(*await self._open())))
            for _ in range(streams):
                group.create_task(self._guarded(self._stream(*await self._open())))
            gc.collect()
            gc.disable()  # a collection stops all clients, for a tenth of a second with thousands of streams
            print("open", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            self._leaving.set()
        for reader, writer in kept:
            await self._guarded(self._ask(reader, writer, b"still there?"))
            writer.close()
        print(json.dumps({"broken": self.broken, "gaps": self.gaps, "bytes": self.moved_bytes}), flush=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(VIP, 80)
        writer.write(b"echo\n")
        return reader, writer

    async def _guarded(self, work: object) -> None:
        try:
            async with asyncio.timeout(300):
                await work  # type: ignore[misc]
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            self.broken.append(repr(error))

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes) -> None:
        writer.write(word)
        if await reader.readexactly(len(word)) != word:
            raise ValueError("other bytes came back")

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gaps: list[tuple[float, float]] = []
        last = time.monotonic()
        while not self._leaving.is_set():
            await self._ask(reader, writer, os.urandom(50))
            now = time.monotonic()
            if now - last - TALK_S > GAP_S:
                gaps.append((time.time(), now - last - TALK_S))
            last = now
            await asyncio.sleep(TALK_S)
        writer.close()
        self.gaps.append(gaps)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said, heard = hashlib.sha256(), hashlib.sha256()

        async def say() -> None:
            while not self._leaving.is_set():
                writer.write(BLOCK)
                said.update(BLOCK)
                await writer.drain()
            writer.write_eof()

        saying = asyncio.create_task(say())
        while data := await reader.read(1 << 18):
            heard.update(data)
            self.moved_bytes += len(data)
        await saying
        writer.close()
        if said.digest() != heard.digest():
            raise ValueError("other bytes came back")


def percentiles(values: Sequence[float]) -> str:
    """The median, the 99th percentile and the most, in milliseconds."""
    ranked = sorted(values)
    picked = (ranked[len(ranked) // 2], ranked[int(0.99 * (len(ranked) - 1))], ranked[-1])
    return "p50 {:.1f}, p99 {:.1f}, most {:.1f} ms".format(*(1000 * each for each in picked))


def at(log: str, message: str) -> float:
    """When the log has a message last, as Unix time."""
    line = [line for line in log.splitlines() if f" {message} " in line][-1]
    return datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def main(arguments: Sequence[str]) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--re-exec", action="store_true")
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args(arguments)
    if given.alone:
        alone(min(given.connections, 1000))
        return
    options = (*QUICK.split(), f"--workers={given.workers}", "--shutdown-grace=300s")
    with make_stage(Path(tempfile.mkdtemp(prefix="kubeproxy-moving-")), links=PodLinks.ROUTED) as stage:
        stage.write_service([0, 1, 2])
        first = stage.daemon(*options)
        stage.await_answers(0, 1, 2)
        clients = stage.client.popen(
            [sys.executable, "-m", "tests.tools.bench.moving", "clients", str(given.connections), str(given.streams)],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        try:
            assert clients.stdout is not None
            assert clients.stdin is not None
            assert clients.stdout.readline() == "open\n"
            time.sleep(BEFORE_S)
            began, begun_at = time.monotonic(), time.time()
            second = first
            if given.re_exec:
                first.process.send_signal(signal.SIGUSR2)
                over = "orphaned worker has ended"
                until(lambda: first.log().count(over) == int(given.workers), over, within_s=200)
            else:
                second = stage.daemon(*options)
                until(lambda: first.process.poll() is not None, "the first instance has ended", within_s=200)
            took_s = time.monotonic() - began
            time.sleep(1)
            said, _ = clients.communicate("end\n", timeout=300)
        finally:
            clients.kill()
            clients.wait()
        show(json.loads(said), first, second, begun_at, took_s)
        stage.clear()


def alone(count: int) -> None:
    """Print the CPU time of both sides of a move."""
    move = Move(count)
    began_s = time.thread_time()
    move.begin()
    move.until(lambda: move.old.idle)
    took_s = time.thread_time() - began_s
    print(f"both sides took {1e6 * took_s / count:.0f} µs of CPU time for each of {count} connections")
    move.close()


def show(report: dict[str, Any], first: Daemon, second: Daemon, begun_at: float, took_s: float) -> None:
    """Print the results."""
    log = second.log()
    moved = [int(number) for number in re.findall(r"connections moved here .*?moved=(\d+)", log)]
    still = [float(number) for number in re.findall(r"connections moved here .*?still_ms=([0-9.]+)", log)]
    print(f"connections moved: {sum(moved)}, broken: {len(report['broken'])} {report['broken'][:3]}")
    print(f"bytes of the streams, compared: {report['bytes']}")
    switched_at = at(log, "serving") if first is second else at(first.log(), "new instance has taken over, draining")
    ended_at = at(log, "connections moved here")
    print("longest silence of each talking connection")
    for words, since, until_ in (
        (f"in {BEFORE_S:.0f} s before", begun_at - BEFORE_S, begun_at),
        ("while the new instance starts", begun_at, switched_at),
        ("while the connections move", switched_at, ended_at),
    ):
        longest = [max([gap for when, gap in gaps if since <= when < until_], default=GAP_S) for gaps in report["gaps"]]
        print(f"  {words}, {until_ - since:.1f} s: {percentiles(longest)}")
    print(f"a load was under way for at most {max(still)} ms; load average {os.getloadavg()[0]:.0f}")
    print(f"from the switch of the rules to the last receipt: {ended_at - switched_at:.2f} s")
    print(f"from the start of the new instance to the end of the old one: {took_s:.1f} s")
    with contextlib.suppress(OSError):
        print(f"CPU seconds of the new instance so far: {cpu_s(second.process.pid):.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["clients"]:
        asyncio.run(Clients().run(int(sys.argv[2]), int(sys.argv[3])))
    else:
        main(sys.argv[1:])
