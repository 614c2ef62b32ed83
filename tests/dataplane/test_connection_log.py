"""What is told of connections that have ended."""

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
    says,
    silent_target,
)

RESET = struct.pack("ii", 1, 0)
LOGGED = Tune(access_log=True, dial_steps_s=(0.05, 0.1))


async def ended(bench: Bench, count: int = 1) -> list[Ended]:
    """The next ones that have ended."""
    seen: list[Ended] = []
    async with asyncio.timeout(30):
        while len(seen) < count:
            seen += await bench.plane.ended()
            await asyncio.sleep(0.01)
    return seen


async def test_a_connection_is_told_of_when_it_has_ended(bench: Bench) -> None:
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
                (told,) = await ended(bench)
                assert (told.frontend, told.protocol, told.endpoint) == (frontend(), Protocol.TCP, alive)
                assert (told.client.address, told.client.port) == ("127.0.0.1", port)
                assert (told.bytes_in, told.bytes_out, told.reason) == (5, 5, "closed")
                assert told.dial_s is not None
                assert 0 <= told.dial_s <= told.duration_s < 60
                assert before <= told.began <= time.time()
    assert await bench.plane.ended() == []


async def test_dials_are_counted(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    with refusing_target() as dead:
        async with endpoint(says("x")) as alive:
            address = await bench.serve(dead, alive)
            await ask(address)
            await ask(address)
            assert sorted(told.attempts for told in await ended(bench, 2)) in ([1, 1], [1, 2])
            assert bench.plane.engine.counters()[frontend()].dial_retries <= 1


@pytest.mark.parametrize("by", ["client", "endpoint"])
async def test_who_reset_it_is_told(bench: Bench, by: str) -> None:
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
        assert [told.reason for told in await ended(bench)] == [f"reset by {by}"]
        sock.close()


async def test_why_there_was_no_endpoint_is_told(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    with refusing_target() as refusing, silent_target() as silent:
        for name, targets in (("refused", (refusing,)), ("timeout", (silent,)), ("no endpoint", ())):
            address = await bench.serve(*targets, name=name.replace(" ", "-"))
            with pytest.raises(ConnectionResetError):
                await ask(address)
            (told,) = await ended(bench)
            assert (told.reason, told.endpoint, told.dial_s) == (name, None, None)
            counters = bench.plane.engine.counters()[frontend(name.replace(" ", "-"))]
            assert (counters.refused, counters.silent, counters.no_endpoint, counters.unable) == (
                name == "refused",
                name == "timeout",
                name == "no endpoint",
                0,
            )


async def test_those_that_are_cut_are_told_of(bench: Bench) -> None:
    await bench.plane.send([LOGGED])
    async with endpoint(echo) as target:
        _, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"x")
        await eventually(lambda: bench.plane.engine.counters()[frontend()].bytes_in == 1)
        bench.plane.engine.close()
        assert [told.reason for told in await ended(bench)] == ["cut"]
        writer.close()


async def test_nothing_is_kept_unless_asked_for_and_never_too_much(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_log, "ENTRIES_MAX", 2)
    async with endpoint(says("x")) as target:
        address = await bench.serve(target)
        await ask(address)
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)
        assert await bench.plane.ended() == []
        await bench.plane.send([LOGGED])
        for _ in range(3):
            await ask(address)
        await eventually(lambda: bench.plane.engine.worker_status().log_skipped == 1)
        assert len(await bench.plane.ended()) == 2
