"""A backend that first sends its name and its caller's address.

``python -m tests.system.soak.backend NAME PORT ADDRESS...``

TCP, by the caller's first line: ``name``: that is all; ``echo``: everything back, until the caller has said all;
``both SIZE SEED``: SIZE bytes of noise, while it listens, then the SHA-256 of what it heard. UDP: both, and
the datagram.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from tests.system.e2e.backend import both, echo


async def answer(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One caller."""
    words = (await reader.readline()).decode().split()
    writer.write(name + b" " + writer.get_extra_info("peername")[0].encode() + b"\n")
    match words:
        case ["echo"]:
            await echo(reader, writer)
        case ["both", size, seed]:
            await both(int(size), seed, reader, writer)


class Datagrams(asyncio.DatagramProtocol):
    """The UDP half."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.DatagramTransport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._transport.sendto(self._name + b" " + addr[0].encode() + b" " + data, addr)


async def main(name: bytes, port: int, addresses: Sequence[str]) -> None:
    """For ever."""

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            try:
                await answer(name, reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    loop = asyncio.get_running_loop()
    for address in addresses:
        await loop.create_datagram_endpoint(lambda: Datagrams(name), local_addr=(address, port))
    await asyncio.start_server(called, addresses, port, backlog=1024)
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3:]))
