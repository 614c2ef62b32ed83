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
            await echo(reader, writer)
        case ["both", size, seed]:
            await both(int(size), seed, reader, writer)
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


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, until the caller has said all."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


async def both(size: int, seed: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send `noise` while the caller sends, then the SHA-256 of what it sent."""
    heard = asyncio.ensure_future(hear(reader))
    try:
        for start in range(0, size, CHUNK):
            writer.write(noise(min(CHUNK, size - start), f"{seed} {start}"))
            await writer.drain()
        writer.write(await heard)
    finally:
        heard.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError):
            await heard


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
