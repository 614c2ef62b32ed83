"""A backend that says first who it is. ``python -m tests.system.soak.backend NAME ADDRESS PORT``

TCP, by the caller's first line: ``name``: that is all; ``echo``: everything back, until the caller has said all;
``both SIZE SEED``: SIZE bytes of noise, while it listens, then the SHA-256 of what it heard. UDP: its name, a space and
the datagram.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

from tests.system.e2e.backend import CHUNK, hear, noise


async def answer(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One caller."""
    words = (await reader.readline()).decode().split()
    writer.write(name + b"\n")
    match words:
        case ["echo"]:
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        case ["both", size, seed]:
            heard = asyncio.ensure_future(hear(reader))
            try:
                for start in range(0, int(size), CHUNK):
                    writer.write(noise(min(CHUNK, int(size) - start), f"{seed} {start}"))
                    await writer.drain()
                writer.write(await heard)
            finally:
                heard.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError):
                    await heard


class Datagrams(asyncio.DatagramProtocol):
    """The UDP half."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.DatagramTransport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._transport.sendto(self._name + b" " + data, addr)


async def main(name: bytes, address: str, port: int) -> None:
    """For ever."""

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            try:
                await answer(name, reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Datagrams(name), local_addr=(address, port))
    server = await asyncio.start_server(called, address, port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].encode(), sys.argv[2], int(sys.argv[3])))
