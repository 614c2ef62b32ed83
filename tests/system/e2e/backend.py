"""A backend that does what its caller's first line says. `backend.py NAME ADDRESS PORT`

``name``: its name. ``slow SECONDS``: its name, later. ``echo``: everything back, until the caller has said all.
``both SIZE SEED``: SIZE bytes of `noise`, while it listens; when the caller has said all, the SHA-256 of what it said.
``drip COUNT SECONDS``: a line every so many seconds. ``reset``: half a line, then RST.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import struct
import sys

CHUNK = 65536


def noise(size: int, seed: str) -> bytes:
    """Bytes that both sides can make."""
    return random.Random(seed).randbytes(size)


async def answer(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One caller."""
    match (await reader.readline()).decode().split():
        case ["name"]:
            writer.write(name)
        case ["slow", seconds]:
            await asyncio.sleep(float(seconds))
            writer.write(name)
        case ["echo"]:
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        case ["both", size, seed]:
            heard = asyncio.ensure_future(hear(reader))
            for piece in range(0, int(size), CHUNK):
                writer.write(noise(min(CHUNK, int(size) - piece), f"{seed} {piece}"))
                await writer.drain()
            writer.write(await heard)
        case ["drip", count, seconds]:
            for _ in range(int(count)):
                writer.write(name + b"\n")
                await writer.drain()
                await asyncio.sleep(float(seconds))
        case ["reset"]:
            writer.write(b"half a")
            await writer.drain()
            await asyncio.sleep(0.2)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def hear(reader: asyncio.StreamReader) -> bytes:
    """The SHA-256 of everything."""
    digest = hashlib.sha256()
    while data := await reader.read(CHUNK):
        digest.update(data)
    return digest.digest()


async def main(name: str, address: str, port: int) -> None:
    """For ever."""

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                await answer(name.encode(), reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    server = await asyncio.start_server(called, address, port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
