"""What asyncio's streams alone make of it: the proxy that a tutorial would write. `streams.py LISTEN PORT TARGET...`"""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
from collections.abc import Iterator


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _serve(
    client: asyncio.StreamReader, to_client: asyncio.StreamWriter, targets: Iterator[str], port: int
) -> None:
    try:
        backend, to_backend = await asyncio.open_connection(next(targets), port)
        try:
            await asyncio.gather(_copy(client, to_backend), _copy(backend, to_client))
        finally:
            to_backend.close()
    except OSError:
        return
    finally:
        to_client.close()


async def main(address: str, ports: list[int], targets: list[str]) -> None:
    """Serve each port of `address` from the same port of the targets, in turn, until killed."""
    for port in ports:
        serve = functools.partial(_serve, targets=itertools.cycle(targets), port=port)
        await asyncio.start_server(serve, address, port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2].split(",")], sys.argv[3:]))
