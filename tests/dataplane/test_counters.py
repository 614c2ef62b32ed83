"""What is counted is told once, in pieces, and never falls, whoever dies; and nobody waits for the counting."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.dataplane import in_process
from kubeproxy.dataplane.interface import Counters
from kubeproxy.dataplane.messages import Listen, Message, Retire, SetEndpoints, Tune
from kubeproxy.dataplane.workers.batch import CHUNK_MESSAGES, chunks
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.main import SLICE_S, TOLD_AT_ONCE, Worker
from kubeproxy.dataplane.workers.protocol import Apply, CountersReply, Done, Report
from kubeproxy.model import FrontendName, Protocol, Target
from tests.dataplane.conftest import LOOPBACK, Bench, ask, echo, endpoint, eventually, frontend, says
from tests.dataplane.workers.harness import ParserPool, crew, until


async def at_rest(it: ParserPool) -> bool:
    return not any(counters.active for counters in (await it.plane.counters()).values())


async def test_who_has_no_clients_is_looked_at_no_more_until_the_next_comes(bench: Bench) -> None:
    engine = bench.plane.engine
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        await bench.serve(target, name="nobody comes here")
        assert list(engine.news()) == []
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        assert [news[0] for news in engine.news() if news] == [frontend()]
        assert list(engine.news()) == [None], "one connection is open: it may speak at any time"
        writer.write(b"y")
        await reader.readexactly(1)
        assert engine.counters()[frontend()].bytes_in == 2
        writer.close()
        await eventually(lambda: engine.counters()[frontend()].active == 0)
        await eventually(lambda: list(engine.news()) == [])
        assert engine.counters()[frontend()] == Counters(accepted=1, bytes_in=2, bytes_out=2)
        assert engine.counters()[frontend("nobody comes here")] == Counters()


async def test_what_connections_of_a_retired_frontend_move_is_not_told_of_the_next_by_its_name(bench: Bench) -> None:
    async with endpoint(echo) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"x")
        await reader.readexactly(1)
        await bench.plane.send([Retire(frontend())])
        assert await bench.plane.counters() == {}
        await bench.serve(target)
        writer.write(b"y")
        await reader.readexactly(1)
        assert await bench.plane.counters() == {frontend(): Counters()}
        writer.close()


async def test_the_loop_breathes_while_one_process_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "BREATH_S", 0.0)
    names = [f"s{number}" for number in range(20)]
    async with endpoint(says("hello")) as target:
        for name in names:
            assert await ask(await bench.serve(target, name=name)) == "hello"
        await eventually(lambda: not bench.plane.open_connections)
        breaths = 0

        async def breathe() -> None:
            nonlocal breaths
            while True:
                await asyncio.sleep(0)
                breaths += 1

        breathing = asyncio.ensure_future(breathe())
        both = await asyncio.gather(bench.plane.counters(), bench.plane.counters())
        assert breaths >= len(names) - 1
        for found in both:
            assert {name: counters.accepted for name, counters in found.items()} == {frontend(n): 1 for n in names}
        breaths = 0
        await bench.plane.ejected()
        assert breaths >= len(names) - 1
        breaths = 0
        await bench.plane.retire()
        assert breaths >= len(names) - 1
        assert await bench.plane.counters() == {}
        breathing.cancel()


async def test_many_counters_come_in_pieces_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crew(1) as it, endpoint(says("hello")) as target:
        names = [f"s{number}" for number in range(2 * TOLD_AT_ONCE + 10)]
        for name in names:
            assert await ask(await it.serve(target, name=name)) == "hello"
        pieces: list[CountersReply] = []
        take = it.workers[0]._take

        def listen_in(report: Report) -> None:
            if isinstance(report, CountersReply):
                pieces.append(report)
            take(report)

        monkeypatch.setattr(it.workers[0], "_take", listen_in)
        await until(lambda: at_rest(it))
        assert max(len(piece.counters) for piece in pieces) == TOLD_AT_ONCE
        assert {name for piece in pieces for name, _ in piece.counters} == {frontend(name) for name in names}
        assert all(counters.accepted == 1 for counters in (await it.plane.counters()).values())
        pieces.clear()
        await it.plane.counters()
        assert [(piece.counters, piece.more) for piece in pieces] == [((), False)]


async def test_sums_never_fall_while_workers_die() -> None:
    async with crew(2) as it, endpoint(says("hello")) as target:
        address = await it.serve(target)
        asked = lost = 0
        last = Counters()
        for round_ in range(60):
            if round_ % 20 == 10:
                await it.complete(2)
                os.kill(it.workers[round_ % 2].pid, signal.SIGKILL)
            try:
                asked += await ask(address) == "hello"
            except ConnectionError:
                lost += 1
            now = (await it.plane.counters())[frontend()]
            assert now.accepted >= last.accepted
            assert now.bytes_out >= last.bytes_out
            last = now
        await it.complete(2)
        await until(lambda: at_rest(it))
        last = (await it.plane.counters())[frontend()]
        # What a dead one had not told is lost: of each the last client at most, as it was asked after every client.
        assert asked - 3 <= last.accepted <= asked + lost


async def test_counters_on_the_way_are_not_those_of_the_next_by_the_same_name() -> None:
    async with crew(2) as it, endpoint(says("hello")) as target:
        assert await ask(await it.serve(target)) == "hello"
        held = it.held[frontend()]
        await asyncio.gather(it.plane.counters(), it.plane.send([Retire(frontend())]))
        assert [worker.counters for worker in it.workers] == [{}, {}]
        await it.plane.send(
            [Listen(frontend(), Protocol.TCP, LOOPBACK, held.port), SetEndpoints(frontend(), (target,))]
        )
        assert await it.plane.counters() == {frontend(): Counters()}
        assert await ask(("127.0.0.1", held.port)) == "hello"
        assert (await it.plane.counters())[frontend()].accepted == 1


def test_a_frame_never_holds_more_than_is_decoded_in_a_turn() -> None:
    def name(number: int) -> FrontendName:
        return frontend(f"s{number}")

    changes: list[Message] = [SetEndpoints(name(number), ()) for number in range(10 * CHUNK_MESSAGES + 1)]
    cut = list(chunks(changes, workers=2))
    assert [message for chunk in cut for message in chunk] == changes
    assert {len(chunk) for chunk in cut} == {CHUNK_MESSAGES, 1}
    listens: list[Message] = [
        Listen(name(number), Protocol.TCP, LOOPBACK, number) if number % 5 else Tune() for number in range(1, 1000)
    ]
    cut = list(chunks(listens, workers=8))
    assert [message for chunk in cut for message in chunk] == listens
    assert max(sum(isinstance(message, Listen) for message in chunk) for chunk in cut) == 32
    assert max(map(len, cut)) <= CHUNK_MESSAGES


# A worker in this process, driven by hand.


@pytest.fixture
def channel_and_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel[Report], Worker]]:
    monkeypatch.setattr(Worker, "_listen_to_signals", lambda self: None)
    ours, theirs = socket.socketpair()
    channel: Channel[Report] = Channel(ours, Report)
    worker = Worker(theirs, number=0, run="", owner_prefix="")
    yield channel, worker
    worker._engine.close()
    worker._reactor.shut()
    channel.close()
    theirs.close()


def turns_until_done(channel: Channel[Report], worker: Worker) -> int:
    for turns in range(1, 1000):
        worker._reactor.turn()
        if any(isinstance(report, Done) for report, _ in channel.receive()):
            return turns
    raise AssertionError("never answered")


def test_what_takes_long_is_left_off_for_a_turn_again_and_again(
    channel_and_worker: tuple[Channel[Report], Worker],
) -> None:
    channel, worker = channel_and_worker
    messages: tuple[Message, ...] = tuple(SetEndpoints(frontend(f"web-{n}"), (Target(LOOPBACK, n),)) for n in range(40))
    now = worker._reactor.now
    step_s = 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    worker._reactor.clock = clock
    channel.send(Apply(1, messages))
    quick = turns_until_done(channel, worker)
    step_s = SLICE_S / 3
    channel.send(Apply(2, messages))
    slow = turns_until_done(channel, worker)
    assert quick == 2, "the last one only because sockets are closed at the end of a turn"
    assert slow > len(messages) // 4
    channel.send(Apply(3, (SetEndpoints(frontend(), (Target(LOOPBACK, 1),)),) * len(messages)))
    assert turns_until_done(channel, worker) <= 3, "what one frontend is to know it hears in one turn"
