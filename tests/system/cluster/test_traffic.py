"""Traffic counts what is lost, and only that."""

from __future__ import annotations

import asyncio
import json
import sys

from tests.system.cluster.node import ROOT
from tests.system.cluster.traffic import Tally

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\npod"


async def tally_of(limit: int | None) -> tuple[Tally, int]:
    """The tally of clients whose server answers so many connections, then resets; and the number of answers."""
    answered = connections = 0
    enough = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered, connections
        connections += 1
        if connections > 40:
            enough.set()
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                if limit is not None and connections > limit:
                    writer.transport.abort()
                    return
                answered += 1
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    arguments = ("127.0.0.1", str(port), "200", "2")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.system.cluster.traffic", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    await enough.wait()
    output, _ = await process.communicate(b"")
    server.close()
    return Tally(**json.loads(output)), answered


async def test_what_is_answered_is_not_lost() -> None:
    tally, _ = await tally_of(None)
    assert tally.answered >= 38
    assert (tally.lost, tally.kept, tally.broken) == ([], 2, [])


async def test_a_reset_is_a_lost_connection_and_breaks_a_kept_one() -> None:
    tally, answered = await tally_of(20)
    assert tally.lost
    assert tally.answered <= answered
    assert {error for _, error in tally.lost} <= {"ConnectionResetError", "IncompleteReadError"}
    assert len(tally.broken) <= tally.kept == 2
