"""Connections: bytes both ways, FIN, resets, back-pressure."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct

import pytest

from kubeproxy.dataplane.messages import Retire, Tune
from tests.dataplane.conftest import Bench, ask, echo, endpoint, eventually, frontend, sends

RESET = struct.pack("ii", 1, 0)


async def test_the_endpoints_bytes_reach_the_client(bench: Bench) -> None:
    async with endpoint(sends("hello")) as target:
        address = await bench.serve(target)
        assert await ask(address) == "hello"
    await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)
    counters = bench.plane.engine.counters()[frontend()]
    assert (counters.accepted, counters.failed, counters.bytes_in, counters.bytes_out) == (1, 0, 0, 5)


async def test_a_client_that_sent_fin_gets_its_answer(bench: Bench) -> None:
    """Half-close: FIN is carried to the endpoint, and the answer comes after it."""

    async def answers_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(question.upper())
        await writer.drain()

    async with endpoint(answers_after_the_end) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"QUESTION"
        writer.close()


async def test_an_endpoint_that_sent_fin_still_receives(bench: Bench) -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def sends_then_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"go on")
        writer.write_eof()
        received.set_result(await reader.read())

    async with endpoint(sends_then_reads) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        assert await reader.read() == b"go on"
        writer.write(b"I do")
        writer.write_eof()
        assert await received == b"I do"
        writer.close()


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 10_000_000])
async def test_many_bytes_both_ways_at_once_arrive_whole(bench: Bench, size: int) -> None:
    """Through recv/send, through the pipe, and over the border between the two."""
    payload = os.urandom(size)
    async with endpoint(echo) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))

        async def write() -> None:
            writer.write(payload)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(write())
        received = await reader.read(-1)
        await sending
        writer.close()
    assert hashlib.sha256(received).digest() == hashlib.sha256(payload).digest()
    await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)
    assert bench.plane._context.pipes.in_use == 0


async def test_a_connection_alternates_between_bulk_and_small_messages(bench: Bench) -> None:
    """The connection takes a pipe for bulk data and returns it when messages are small again."""
    async with endpoint(echo) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        pipes = bench.plane._context.pipes
        borrowed = False
        for _ in range(2):
            blob = os.urandom(3_000_000)
            sending = asyncio.create_task(_write(writer, blob))
            received = b""
            while len(received) < len(blob):
                received += await reader.readexactly(min(100_000, len(blob) - len(received)))
                borrowed = borrowed or pipes.in_use > 0
            await sending
            assert received == blob
            for number in range(20):
                writer.write(b"ping %d\n" % number)
                assert await reader.readline() == b"ping %d\n" % number
            assert pipes.in_use == 0
        assert borrowed
        writer.close()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_a_slow_reader_stops_the_sender(bench: Bench) -> None:
    """Memory stays bounded: what the client does not read stays with the endpoint."""
    sent = 0

    async def pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        block = bytes(100_000)
        while sent < 500_000_000:
            writer.write(block)
            await writer.drain()
            sent += len(block)

    async with endpoint(pours) as target:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, await bench.serve(target))
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 50_000_000
        sock.close()
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)


async def test_a_reset_by_the_client_resets_the_endpoint(bench: Bench) -> None:
    seen: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        try:
            seen.set_result(await reader.read())
        except ConnectionResetError as error:
            seen.set_result(error)

    async with endpoint(listens) as target:
        with socket.create_connection(await bench.serve(target)) as sock:
            sock.sendall(b"hello")
            await eventually(lambda: bench.plane.engine.counters()[frontend()].bytes_in == 5)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert isinstance(await asyncio.wait_for(seen, 20), ConnectionResetError)


async def test_a_reset_by_the_endpoint_resets_the_client_after_its_answer(bench: Bench) -> None:
    """An endpoint that closes with unread input makes its kernel send RST behind the answer."""

    async def answers_and_slams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"413 too large")
        await writer.drain()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async with endpoint(answers_and_slams) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"x")
        assert await reader.readexactly(13) == b"413 too large"
        with pytest.raises(ConnectionResetError):
            await reader.read(100)
        writer.close()


async def test_a_reset_after_the_fin_ends_the_connection(bench: Bench) -> None:
    """A client that sent FIN and then resets must not leave its endpoint waiting for ever."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        try:
            while True:
                writer.write(b"are you there? ")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.set_result(None)

    async with endpoint(waits) as target:
        sock = socket.create_connection(await bench.serve(target))
        sock.shutdown(socket.SHUT_WR)
        await eventually(lambda: bench.plane.engine.counters()[frontend()].bytes_out > 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
        await asyncio.wait_for(gone, 20)
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)


async def test_urgent_data_stays_in_the_stream(bench: Bench) -> None:
    async with endpoint(echo) as target:
        sock = socket.socket()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, await bench.serve(target))
        sock.send(b"abc")
        sock.send(b"!", socket.MSG_OOB)
        sock.send(b"def")
        received = b""
        async with asyncio.timeout(20):
            while len(received) < 7:
                received += await loop.sock_recv(sock, 100)
        assert received == b"abc!def"
        sock.close()


async def test_open_connections_survive_their_frontend(bench: Bench) -> None:
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        await bench.plane.send([Retire(frontend())])
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        writer.close()


async def test_a_drain_waits_for_the_connections_open_at_its_start(bench: Bench) -> None:
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        assert await bench.plane.drain(0.2) == 1
        drain = asyncio.create_task(bench.plane.drain(20))
        await asyncio.sleep(0.1)
        late_reader, late_writer = await asyncio.open_connection(*address)
        late_writer.write(b"y")
        assert await late_reader.readexactly(1) == b"y"
        writer.close()
        assert await drain == 0
        late_writer.close()


async def test_a_half_closed_connection_that_is_silent_for_long_is_ended(bench: Bench) -> None:
    """But none that still moves bytes, nor an idle one that is open both ways."""
    await bench.plane.send([Tune(half_closed_idle_s=0.4, access_log=True)])

    async def forgets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = await reader.readexactly(1)
        while not over.is_set() and not writer.transport.is_closing():
            if kind == b"t":
                writer.write(b".")
            await asyncio.sleep(0.05)

    over = asyncio.Event()
    async with endpoint(forgets) as target:
        address = await bench.serve(target)
        whole, forgotten, talking = [await asyncio.open_connection(*address) for _ in range(3)]
        for (_, writer), kind in ((whole, b"w"), (forgotten, b"f"), (talking, b"t")):
            writer.write(kind)
        for _, writer in (forgotten, talking):
            writer.write_eof()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(forgotten[0].read(), 10)
        assert [record.reason for record in await bench.plane.ended()] == ["idle"]
        assert bench.plane.engine.counters()[frontend()].active == 2
        assert await talking[0].readexactly(1) == b"."
        over.set()
        for _, writer in (whole, forgotten, talking):
            writer.transport.abort()
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)


async def test_a_half_closed_connection_without_an_answer_ends_sooner(bench: Bench) -> None:
    """Finding 1: the last hop of a loop held descriptors for an hour. An endpoint that has sent a byte has longer."""
    await bench.plane.send([Tune(half_closed_idle_s=600.0, unanswered_idle_s=0.4, access_log=True)])
    over = asyncio.Event()

    async def thinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1) == b"b":
            writer.write(b".")
        await over.wait()

    async with endpoint(thinks) as target:
        address = await bench.serve(target)
        silent, begun, whole = [await asyncio.open_connection(*address) for _ in range(3)]
        begun[1].write(b"b")
        assert await begun[0].readexactly(1) == b"."
        for _, writer in (silent, begun):
            writer.write_eof()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(silent[0].read(), 10)
        await asyncio.sleep(0.6)
        assert [record.reason for record in await bench.plane.ended()] == ["idle"]
        assert bench.plane.engine.counters()[frontend()].active == 2
        over.set()
        for _, writer in (silent, begun, whole):
            writer.transport.abort()
        await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 200_000])
async def test_the_last_bytes_and_fin_arrive_complete(bench: Bench, size: int) -> None:
    """An endpoint that sends and closes at once, and a client that reads late."""
    words = os.urandom(size)

    async def sends_and_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)

    async with endpoint(sends_and_closes) as target:
        address = await bench.serve(target)
        readers = [(await asyncio.open_connection(*address)) for _ in range(20)]
        for reader, writer in readers:
            assert await reader.read() == words
            writer.close()
    await eventually(lambda: bench.plane.engine.counters()[frontend()].active == 0)
