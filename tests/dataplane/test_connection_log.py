"""Records of finished connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from kubeproxy.dataplane import connection_log
from kubeproxy.dataplane.interface import Ended
from kubeproxy.dataplane.messages import Tune
from kubeproxy.model import Protocol
from tests.dataplane.conftest import (
    Bench,
    ask,
    echo,
    endpoint,
    eventually,
    frontend,
    refusing_target,
    sends,
    silent_target,
)

RESET = struct.pack("ii", 1, 0)
LOGGED = Tune(access_log=True, dial_steps_s=(0.05, 0.1))


async def ended(bench: Bench, count: int = 1) -> list[Ended]:
    """The next `count` records."""
    seen: list[Ended] = []
    async with asyncio.timeout(30):
        while len(seen) < count:
            seen += await bench.plane.ended()
            await asyncio.sleep(0.01)
    return seen


async def test_a_finished_connection_is_recorded(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    before = time.time()
    with refusing_target() as dead:
        async with endpoint(echo) as alive:
            address = await bench.serve(dead, alive)
            for _ in range(2):
                reader, writer = await asyncio.open_connection(*address)
                port = writer.get_extra_info("sockname")[1]
                writer.write(b"hello")
                writer.write_eof()
                assert await reader.read() == b"hello"
                writer.close()
                (record,) = await ended(bench)
                assert (record.frontend, record.protocol, record.endpoint) == (frontend(), Protocol.TCP, alive)
                assert (record.client.address, record.client.port) == ("127.0.0.1", port)
                assert (record.bytes_in, record.bytes_out, record.reason) == (5, 5, "closed")
                assert record.dial_s is not None
                assert record.duration_s is not None
                assert 0 <= record.dial_s <= record.duration_s < 60
                assert before <= record.began <= time.time()
    assert await bench.plane.ended() == []


async def test_dials_are_counted(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    with refusing_target() as dead:
        async with endpoint(sends("x")) as alive:
            address = await bench.serve(dead, alive)
            await ask(address)
            await ask(address)
            assert sorted(record.attempts or 0 for record in await ended(bench, 2)) in ([1, 1], [1, 2])
            assert bench.plane.engine.counters()[frontend()].dial_retries <= 1


@pytest.mark.parametrize("by", ["client", "endpoint"])
async def test_the_record_names_the_side_that_reset(bench: Bench, by: str) -> None:
    await bench.plane.send([LOGGED])

    async def slams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if by == "endpoint":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        else:
            await reader.read()

    async with endpoint(slams) as target:
        sock = socket.create_connection(await bench.serve(target))
        sock.sendall(b"x")
        if by == "client":
            await eventually(lambda: bench.plane.engine.counters()[frontend()].bytes_in == 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()
        assert [record.reason for record in await ended(bench)] == [f"reset by {by}"]
        sock.close()


async def test_the_record_says_why_no_endpoint_answered(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    with refusing_target() as refusing, silent_target() as silent:
        for name, targets in (("refused", (refusing,)), ("timeout", (silent,)), ("no endpoint", ())):
            address = await bench.serve(*targets, name=name.replace(" ", "-"))
            with pytest.raises(ConnectionResetError):
                await ask(address)
            (record,) = await ended(bench)
            assert (record.reason, record.endpoint, record.dial_s) == (name, None, None)
            counters = bench.plane.engine.counters()[frontend(name.replace(" ", "-"))]
            assert (counters.refused, counters.silent, counters.no_endpoint, counters.unable) == (
                name == "refused",
                name == "timeout",
                name == "no endpoint",
                0,
            )


async def test_connections_cut_by_a_shutdown_are_recorded(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    async with endpoint(echo) as target:
        _, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"x")
        await eventually(lambda: bench.plane.engine.counters()[frontend()].bytes_in == 1)
        bench.plane.engine.close()
        assert [record.reason for record in await ended(bench)] == ["cut"]
        writer.close()


async def test_records_are_kept_only_if_configured_and_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_log, "ENTRIES_MAX", 2)
    async with endpoint(sends("x")) as target:
        address = await bench.serve(target)
        await ask(address)
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)
        assert await bench.plane.ended() == []
        await bench.plane.send([LOGGED])
        for _ in range(3):
            await ask(address)
        await eventually(lambda: bench.plane.engine.worker_status().log_skipped == 1)
        assert len(await bench.plane.ended()) == 2
