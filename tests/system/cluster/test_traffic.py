"""Traffic counts what is lost, and only that."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.system.cluster.kept_connections import KINDS, KeptConnection
from tests.system.cluster.node import ROOT
from tests.system.cluster.traffic import Tally
from tests.system.e2e.backend import answer

KEPT = 10


async def tally_of(limit: int | None) -> Tally:
    """The tally of clients whose server resets all connections once so many have come, and those after them."""
    connections = 0
    enough = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writers.append(writer)
        if connections > 60:
            enough.set()
        if limit is not None and connections > limit:
            for each in writers:
                each.transport.abort()
            writers.clear()
            return
        try:
            await answer(b"web-1", reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.system.cluster.traffic", "127.0.0.1", str(port), "200", str(KEPT)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    await enough.wait()
    output, _ = await process.communicate(b"")
    server.close()
    return Tally(**json.loads(output))


async def test_what_is_answered_is_not_lost() -> None:
    tally = await tally_of(None)
    assert tally.answered >= 60 - KEPT - 2
    assert (tally.lost, tally.broken) == ([], [])
    assert tally.kept == {"idle": 3, "chatting": 3, "half-closed": 3, "bulk": 1}
    assert tally.longest_silence_s.keys() == KINDS.keys()


async def test_a_reset_is_a_lost_connection_and_breaks_kept_ones_of_every_kind() -> None:
    tally = await tally_of(40)
    assert tally.lost
    assert {error for _, error in tally.lost} <= {"ConnectionResetError", "ValueError"}
    assert {kind for _, kind, _ in tally.broken} == set(KINDS)
    assert len(tally.broken) == KEPT


@pytest.mark.parametrize("kind", KINDS)
async def test_other_bytes_break_a_kept_connection(kind: str) -> None:
    leaving = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        for number in range(50):
            writer.write(b"%d\n" % number * 1000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    with pytest.raises((ValueError, EOFError, OSError)):
        await KINDS[kind](KeptConnection(reader, writer, 1, leaving))
    writer.close()
    server.close()
