"""The traffic from one host: short connections, long ones, large transfers, UDP.
``python -m tests.system.soak.clients HOST SEED``

It runs until its standard input ends, and prints one outcome a line. Times are those of CLOCK_MONOTONIC, which is the
same for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from tests.system.e2e.backend import CHUNK, noise
from tests.system.soak.schedule import PLACES, Place

PATIENCE_S = 40.0
"""How long a client waits. It is longer than any promise allows, so that a delay is visible."""
IMPATIENT = "no answer within the patience of a client"
UDP_TRY_S, UDP_TRIES = 1.0, 12
RATE = {"client": 40.0, "node": 15.0}
"""New short connections a second."""
LONG = {"client": 12, "node": 6}
"""Long connections at a time."""
PORTS = (11000, 29000)
"""Source ports of the clients: none that the kernel would assign."""
SOCKETS = 3
"""UDP sockets that are open to the end."""
TCP = tuple(place for place in PLACES if place.protocol == "TCP")
STEADY = tuple(place for place in TCP if place.steady)
UDP = tuple(place for place in PLACES if place.protocol == "UDP")
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ANSWER = re.compile(rb"pod-(\d+) ([0-9a-f.:]+)\n")


class Outcome(NamedTuple):
    """The outcome of one client."""

    host: str
    kind: str
    """short, long, large, udp, or opened: a long one, as soon as it had its first answer."""
    place: str
    began: float
    ended: float
    port: int = 0
    """The client's own port; 0: it never had one."""
    pod: int = -1
    """The pod that answered; -1: none."""
    error: str = ""
    words: int = 0
    """Checked answers, or datagrams sent."""
    heard: float = 0.0
    """By TCP, when the pod's name arrived; 0: never. By UDP, when the last datagram was sent."""
    path: str = ""
    """The data path; empty: unknown, because there was no answer, or endpoints see an address of the node on both."""
    family: int = 4


class Clients:
    """All clients, in one process."""

    def __init__(self, host: str, seed: int) -> None:
        self._host = host
        self._rng = random.Random(f"{seed} {host}")
        self._leaving = asyncio.Event()
        self._port = self._rng.randrange(*PORTS)

    async def run(self) -> None:
        """Run until standard input ends, then wait for the open connections."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda done: self._leaving.set())
            for _ in range(LONG[self._host]):
                group.create_task(self._again(lambda: self._tcp("long", self._rng.choice(STEADY), self._talk)))
            group.create_task(self._again(lambda: self._tcp("large", self._rng.choice(STEADY), self._transfer)))
            for number in range(SOCKETS):
                group.create_task(self._exchange(UDP[number % len(UDP)], for_good=True))
            due = time.monotonic()
            while not self._leaving.is_set():
                due += 1 / RATE[self._host]
                if self._rng.random() < 0.15:
                    group.create_task(self._exchange(self._rng.choice(UDP), for_good=False))
                else:
                    group.create_task(self._tcp("short", self._rng.choice(TCP), self._ask))
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _again(self, make: Callable[[], Awaitable[None]]) -> None:
        while not self._leaving.is_set():
            await make()
            await self._pause(self._rng.uniform(0.1, 0.5))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    # TCP.

    async def _tcp(self, kind: str, place: Place, use: Callable[[_Call], Awaitable[None]]) -> None:
        call = _Call(self._host, kind, place)
        address = self._choose(call, place)
        sock = socket.socket(_FAMILIES[call.family], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            try:
                call.port = self._bind(sock)
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.get_running_loop().sock_connect(sock, address)
                call.own = sock.getsockname()[0]
            except BaseException:
                sock.close()
                raise
            call.reader, call.writer = await asyncio.open_connection(sock=sock)
            try:
                await use(call)
            finally:
                call.writer.close()
        except TimeoutError:
            call.end(IMPATIENT)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            call.end(repr(error))
        else:
            call.end()

    def _bind(self, sock: socket.socket) -> int:
        """Bind the socket to the next of our ports. Connection tracking would lead a port that comes again within ten
        seconds of a reset to its old endpoint, which may be gone."""
        while True:
            self._port = self._port + 1 if self._port < PORTS[1] else PORTS[0]
            with suppress(OSError):
                sock.bind(("", self._port))
                return self._port

    def _choose(self, call: _Call, place: Place) -> tuple[str, int]:
        """An address of the service, of any family."""
        call.family = self._rng.choice((4, 6))
        return place.asked[call.family == 6]

    async def _ask(self, call: _Call) -> None:
        call.writer.write(b"name\n")
        async with asyncio.timeout(PATIENCE_S):
            call.answered_by(await call.reader.readline())
            await call.expect_end()

    async def _talk(self, call: _Call) -> None:
        """Ask on one connection: some clients for a short time, others to the end."""
        rng = random.Random(self._rng.random())
        until = time.monotonic() + (rng.uniform(1.0, 8.0) if rng.random() < 0.6 else 1e9)
        call.writer.write(b"echo\n")
        async with asyncio.timeout(PATIENCE_S):
            call.answered_by(await call.reader.readline())
        call.tell("opened")
        while time.monotonic() < until and not self._leaving.is_set():
            word = rng.randbytes(rng.randrange(1, 3000))
            call.writer.write(word)
            async with asyncio.timeout(PATIENCE_S):
                if await call.reader.readexactly(len(word)) != word:
                    raise ValueError("other bytes came back")
            call.words += 1
            await self._pause(rng.uniform(0.05, 0.4))
        call.writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            await call.expect_end()

    async def _transfer(self, call: _Call) -> None:
        """Send as much each way at once, with a half-close in the middle."""
        size, seed = self._rng.randrange(100_000, 4_000_000), f"{self._rng.randrange(1 << 30)}"
        async with asyncio.timeout(PATIENCE_S):
            call.writer.write(f"both {size} {seed}\n".encode())
            call.answered_by(await call.reader.readline())
            saying = asyncio.ensure_future(self._say(call, size, seed))
            try:
                for start in range(0, size, CHUNK):
                    length = min(CHUNK, size - start)
                    if await call.reader.readexactly(length) != noise(length, f"{seed} {start}"):
                        raise ValueError("other bytes came")
                if await call.reader.readexactly(32) != await saying:
                    raise ValueError("other bytes arrived")
                await call.expect_end()
            finally:
                saying.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await saying
        call.words = size

    async def _say(self, call: _Call, size: int, seed: str) -> bytes:
        digest = hashlib.sha256()
        for start in range(0, size, CHUNK):
            data = noise(min(CHUNK, size - start), f"mine {seed} {start}")
            digest.update(data)
            call.writer.write(data)
            await call.writer.drain()
        call.writer.write_eof()
        return digest.digest()

    # UDP.

    async def _exchange(self, place: Place, *, for_good: bool) -> None:
        """Ask one question on a new socket, or one after another on the same."""
        loop = asyncio.get_running_loop()
        first = _Call(self._host, "udp", place)
        address = self._choose(first, place)
        with socket.socket(_FAMILIES[first.family], socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.connect(address)
            while True:
                call = _Call(self._host, "udp", place)
                call.family = first.family
                call.own, call.port = sock.getsockname()[:2]
                question = self._rng.randbytes(self._rng.randrange(8, 1400))
                for _ in range(UDP_TRIES):
                    call.words += 1
                    # A datagram that is refused, or that this host's packet filter drops on its way out, is lost.
                    with suppress(TimeoutError, ConnectionRefusedError, PermissionError):
                        call.heard = tried = time.monotonic()
                        await loop.sock_sendall(sock, question)
                        async with asyncio.timeout(UDP_TRY_S):
                            while True:
                                name, peer, said = (await loop.sock_recv(sock, 65536)).split(b" ", 2)
                                if said == question:
                                    break
                                if len(said) >= 8 and said[:8] == question[:8]:
                                    call.error = "other bytes came back"
                        call.answered_by(name + b" " + peer + b"\n")
                        break
                    await asyncio.sleep(max(0.0, tried + UDP_TRY_S - time.monotonic()))
                call.end(call.error or ("" if call.pod >= 0 else "no answer to any of the datagrams"))
                if not for_good or self._leaving.is_set():
                    return
                await self._pause(self._rng.uniform(0.05, 0.5))


class _Call:
    """One client during its connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, host: str, kind: str, place: Place) -> None:
        self._host, self._kind, self._place = host, kind, place
        self._began = time.monotonic()
        self.port, self.pod, self.words, self.error, self.heard = 0, -1, 0, "", 0.0
        self.own, self.path, self.family = "", "", 4

    def answered_by(self, line: bytes) -> None:
        """Record the pod and the path. ValueError when the line is not the whole name of a pod and an address."""
        found = _ANSWER.fullmatch(line)
        if found is None:
            raise ValueError(f"answered {line[:100]!r}")
        self.pod, self.heard = int(found[1]), time.monotonic()
        if not self._place.masqueraded:
            self.path = "kernel" if found[2].decode() == self.own else "userspace"

    async def expect_end(self) -> None:
        """Wait for the end of the stream; ValueError when there is more."""
        if rest := await self.reader.read():
            raise ValueError(f"{len(rest)} bytes too many came back")

    def tell(self, kind: str, error: str = "") -> None:
        """Print the outcome so far."""
        connection = (self._host, kind, self._place.name, self._began, time.monotonic(), self.port)
        answer = (self.pod, error, self.words, self.heard, self.path, self.family)
        print(json.dumps(Outcome(*connection, *answer)))

    def end(self, error: str = "") -> None:
        """Print the final outcome."""
        self.tell(self._kind, error)


def outcome(line: str) -> Outcome:
    """Parse a line that `Clients` printed."""
    words: list[Any] = json.loads(line)
    return Outcome(*words)


if __name__ == "__main__":
    asyncio.run(Clients(sys.argv[1], int(sys.argv[2])).run())
