"""Small programs for the benchmark of schedulers, each a process of its own on one host.

serve PORT ADDRESS=DELAY_S ...          answers what comes first on a connection, by address after a delay; says
                                        "ready", then prints every 0.1 s the moment, and what is open by address
ask ADDRESS PORT SECONDS CLIENTS        each client asks on a connection of its own, again and again; prints how long
                                        each answer took, in seconds, sorted, and the number of failures, as JSON
keep ADDRESS PORT SECONDS PER_S LONGEST so many new connections a second, which ask once and last up to LONGEST
                                        seconds; prints the same

Each client has an address of its own in 172.20.0.0/16, which has to be local.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import sys
import time
from collections import Counter

_IP_BIND_ADDRESS_NO_PORT = 24
_PATIENCE_S = 30.0


class Endpoint(asyncio.Protocol):
    """One connection to an endpoint."""

    def __init__(self, opened: Counter[str], delays: dict[str, float]) -> None:
        self._opened, self._delays = opened, delays

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = transport.get_extra_info("sockname")[0]
        self._opened[self._address] += 1

    def data_received(self, data: bytes) -> None:
        """Answer after the delay."""
        asyncio.get_running_loop().call_later(self._delays[self._address], self._transport.write, b"answer")

    def connection_lost(self, error: Exception | None) -> None:
        """Count it no more."""
        self._opened[self._address] -= 1


async def serve(port: int, delays: dict[str, float]) -> None:
    """Serve until killed."""
    opened = Counter(dict.fromkeys(delays, 0))
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Endpoint(opened, delays), list(delays), port, backlog=4096)
    print("ready", flush=True)
    while True:
        await asyncio.sleep(0.1)
        print(json.dumps([time.monotonic(), opened]), flush=True)


class Clients:
    """What the clients see."""

    def __init__(self, address: str, port: int) -> None:
        self._at = address, port
        self._waits: list[float] = []
        self._failures = 0

    async def connect(self, number: int) -> socket.socket | None:
        """Ask once on a new connection, and return it; None if that failed."""
        loop, began = asyncio.get_running_loop(), time.monotonic()
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        try:
            sock.bind((f"172.20.{number // 250 % 250}.{number % 250 + 1}", 0))
            async with asyncio.timeout(_PATIENCE_S):
                await loop.sock_connect(sock, self._at)
                await loop.sock_sendall(sock, b"question")
                if not await loop.sock_recv(sock, 100):
                    raise ConnectionResetError
        except (OSError, TimeoutError):
            self._failures += 1
            sock.close()
            return None
        self._waits.append(time.monotonic() - began)
        return sock

    async def ask(self, seconds: float, clients: int) -> None:
        """Run the closed loops."""
        end = time.monotonic() + seconds

        async def loop(number: int) -> None:
            while time.monotonic() < end:
                if (sock := await self.connect(number)) is not None:
                    sock.close()

        await asyncio.gather(*map(loop, range(clients)))

    async def keep(self, seconds: float, per_s: float, longest_s: float) -> None:
        """Open connections at fixed moments, whether or not the others have an answer."""
        rng, began = random.Random(1), time.monotonic()
        running: set[asyncio.Task[None]] = set()

        async def last(number: int, lasts_s: float) -> None:
            sock = await self.connect(number)
            await asyncio.sleep(lasts_s)
            if sock is not None:
                sock.close()

        for number in range(int(seconds * per_s)):
            await asyncio.sleep(began + number / per_s - time.monotonic())
            running.add(task := asyncio.create_task(last(number, rng.uniform(min(1.0, longest_s / 10), longest_s))))
            task.add_done_callback(running.discard)

    def report(self) -> str:
        """Return what the programs print."""
        return json.dumps([sorted(self._waits), self._failures])


def main() -> None:
    """Run one of the programs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    match sys.argv[1:]:
        case ["serve", port, *delays]:
            asyncio.run(serve(int(port), {address: float(s) for address, s in (it.split("=") for it in delays)}))
        case ["ask", address, port, seconds, count]:
            clients = Clients(address, int(port))
            asyncio.run(clients.ask(float(seconds), int(count)))
            print(clients.report())
        case ["keep", address, port, seconds, per_s, longest]:
            clients = Clients(address, int(port))
            asyncio.run(clients.keep(float(seconds), float(per_s), float(longest)))
            print(clients.report())
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
