"""Dials: which endpoint serves a client when some refuse or stay silent."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter

import pytest

from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.loop.turn_end import DIALS, TurnEnd
from kubeproxy.dataplane.messages import SetEndpoints, Tune
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

QUICK = Tune(dial_steps_s=(0.05, 0.1, 0.2, 0.4))


async def test_round_robin_is_exact(bench: Bench) -> None:
    async with endpoint(sends("a")) as a, endpoint(sends("b")) as b, endpoint(sends("c")) as c:
        address = await bench.serve(a, b, c)
        answers = Counter([await ask(address) for _ in range(30)])
    assert answers == {"a": 10, "b": 10, "c": 10}


async def test_a_refusing_endpoint_is_never_seen_by_a_client(bench: Bench) -> None:
    with refusing_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await bench.serve(dead, alive)
            assert [await ask(address) for _ in range(10)] == ["alive"] * 10
    counters = bench.plane.engine.counters()[frontend()]
    assert counters.failed == 0
    assert counters.dial_retries >= 1


async def test_a_connection_is_counted_from_its_dial_to_its_end(bench: Bench) -> None:
    await bench.plane.send([QUICK])
    with refusing_target() as refusing, silent_target() as silent:
        async with endpoint(echo) as alive:
            host, port = await bench.serve(refusing, silent, alive)
            clients = [await asyncio.open_connection(host, port) for _ in range(6)]
            # Neither what refused nor, once the race is over, what lost it is open.
            await eventually(lambda: bench.open() == {alive: 6})
            for _, writer in clients[:2]:
                writer.close()
            await eventually(lambda: bench.open() == {alive: 4})
            for _, writer in clients[2:]:
                writer.transport.abort()
            await eventually(lambda: not bench.open())


async def test_a_silent_endpoint_is_skipped_after_its_step(bench: Bench) -> None:
    await bench.plane.send([QUICK])
    with silent_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await bench.serve(dead, alive)
            assert await asyncio.gather(*(ask(address) for _ in range(20))) == ["alive"] * 20
    assert bench.plane.engine.counters()[frontend()].failed == 0


async def test_a_silent_endpoint_costs_its_step_once_and_then_nothing(bench: Bench) -> None:
    with silent_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await bench.serve(dead, alive)
            for _ in range(10):
                assert await ask(address) == "alive"
            assert dead in bench.plane.engine._listeners[frontend()].balancer.ejected
    assert bench.plane.engine.counters()[frontend()].dial_retries == 1


async def test_a_silent_endpoint_delays_no_other_frontend(bench: Bench) -> None:
    """The old userspace proxy dialed inside accept: three clients waited 3.8, 7.5 and 11.3 s."""
    with silent_target() as dead:
        async with endpoint(sends("other")) as alive:
            stuck_address = await bench.serve(dead, name="stuck")
            address = await bench.serve(alive, name="fine")
            stuck = [asyncio.open_connection(*stuck_address) for _ in range(3)]
            writers = [writer for _, writer in await asyncio.gather(*stuck)]
            assert await ask(address) == "other"
            assert bench.plane.engine.counters()[frontend("stuck")].failed == 0
            for writer in writers:
                writer.close()


async def test_after_the_last_step_the_client_is_reset(bench: Bench) -> None:
    await bench.plane.send([QUICK])
    with silent_target() as dead:
        address = await bench.serve(dead)
        with pytest.raises(ConnectionResetError):
            await ask(address)
    await eventually(lambda: bench.plane.engine.counters()[frontend()].failed == 1)
    assert bench.plane._context.live == set()


async def test_a_dial_waits_for_a_restarting_endpoint(bench: Bench) -> None:
    await bench.plane.send([Tune(dial_steps_s=(0.2, 0.4, 0.8, 1.6))])
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with refusing_target() as other:
            address = await bench.serve(type(other)(other.address, port))
        asking = asyncio.create_task(ask(address))
        await eventually(lambda: bench.plane.engine.counters()[frontend()].dial_retries >= 1)
        sock.listen()
        sock.setblocking(False)
        accepted, _ = await asyncio.get_running_loop().sock_accept(sock)
        accepted.send(b"back")
        accepted.close()
        assert await asking == "back"


async def test_the_first_to_answer_wins(bench: Bench) -> None:
    """A slow network is not a dead endpoint: the silent attempt stays open beside the next one, and is closed after."""
    await bench.plane.send([QUICK])
    with silent_target() as slow:
        async with endpoint(echo) as alive:
            address = await bench.serve(slow, alive)
            for _ in range(4):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"hi")
                assert await reader.readexactly(2) == b"hi"
                writer.close()
    context = bench.plane._context
    await eventually(lambda: not context.live)
    assert context.budget.used == 1  # the reserved port


async def test_no_endpoints_resets_at_once(bench: Bench) -> None:
    address = await bench.serve()
    with pytest.raises(ConnectionResetError):
        await ask(address, timeout_s=1)


async def test_a_clients_reset_ends_its_dial(bench: Bench) -> None:
    with silent_target() as dead:
        address = await bench.serve(dead)
        sock = socket.create_connection(address)
        await eventually(lambda: bench.plane.engine.counters()[frontend()].accepted == 1)
        assert len(bench.plane._context.live) == 1
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await eventually(lambda: not bench.plane._context.live, within_s=0.2)
    assert bench.plane.engine.counters()[frontend()].failed == 0


async def test_a_client_that_sent_data_and_fin_during_the_dial_is_served(bench: Bench) -> None:
    await bench.plane.send([QUICK])

    async def question(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()

    with silent_target() as slow:
        async with endpoint(question) as alive:
            address = await bench.serve(slow, alive)
            for _ in range(2):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"early")
                writer.write_eof()
                assert await reader.read() == b"EARLY"
                writer.close()


@pytest.mark.parametrize("size", [1, 65_536, 300_000])
async def test_early_bytes_reach_the_endpoint_that_answers(bench: Bench, size: int) -> None:
    """Once and complete, whichever endpoints were tried before."""
    await bench.plane.send([QUICK])
    early = bytes(range(256)) * (size // 256) or b"x"
    with refusing_target() as refusing, silent_target() as silent:
        async with endpoint(echo) as alive:
            address = await bench.serve(refusing, silent, alive)
            for _ in range(3):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
                # Bytes sent before the data plane's next turn are received before the client is accepted.
                sock.connect(address)
                sock.setblocking(False)
                sent = sock.send(early)
                sock.shutdown(socket.SHUT_WR)
                reader, writer = await asyncio.open_connection(sock=sock)
                assert await asyncio.wait_for(reader.read(), 10) == early[:sent]
                writer.close()
    await eventually(lambda: not bench.plane._context.live)
    counters = bench.plane.engine.counters()[frontend()]
    assert counters.bytes_in == counters.bytes_out > 0


async def test_endpoints_change_under_running_connections(bench: Bench) -> None:
    async with endpoint(echo) as old, endpoint(sends("new")) as new:
        address = await bench.serve(old)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        await bench.plane.send([SetEndpoints(frontend(), (new,))])
        assert await ask(address) == "new"
        writer.write(b"2")
        assert await reader.readexactly(1) == b"2"
        writer.close()


async def test_a_client_stays_with_its_endpoint(bench: Bench) -> None:
    async with endpoint(sends("a")) as a, endpoint(sends("b")) as b:
        address = await bench.serve(a, b, affinity_timeout_s=600)
        assert len({await ask(address) for _ in range(6)}) == 1


async def test_affinity_moves_the_client_to_an_endpoint_that_answers(bench: Bench) -> None:
    with refusing_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await bench.serve(dead, alive, affinity_timeout_s=600)
            assert {await ask(address) for _ in range(6)} == {"alive"}
    assert bench.plane.engine.counters()[frontend()].dial_retries <= 1


def test_dials_begun_in_one_turn_are_bounded() -> None:
    class Waiting:
        def __init__(self, number: int) -> None:
            self.number = number

        def begin(self) -> None:
            begun.append(self.number)

    begun: list[int] = []
    reactor = Reactor()
    turn_end = TurnEnd(reactor, send=lambda flows: None)
    for number in range(2 * DIALS + 1):
        turn_end.dial(Waiting(number))
    seen = []
    for _ in range(4):
        reactor.turn()
        seen.append(len(begun))
    assert seen == [DIALS, 2 * DIALS, 2 * DIALS + 1, 2 * DIALS + 1]
    assert begun == sorted(begun)
    reactor.shut()
