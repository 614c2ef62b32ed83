"""Counters: reported once, in bounded frames, never decreasing, and without delaying the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.dataplane import in_process
from kubeproxy.dataplane.balancing.open_counts import SharedRows
from kubeproxy.dataplane.interface import Counters
from kubeproxy.dataplane.messages import Listen, MarkEndpoint, Message, Retire, SetEndpoints, Tune
from kubeproxy.dataplane.workers.batch import CHUNK_MESSAGES, chunks
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.columns import Columns
from kubeproxy.dataplane.workers.engine_requests import COUNTERS_PER_FRAME
from kubeproxy.dataplane.workers.main import SLICE_S, Worker
from kubeproxy.dataplane.workers.orphan import Marker
from kubeproxy.dataplane.workers.protocol import Apply, CountersReply, DoneReply, Report
from kubeproxy.model import Address, FrontendName, Protocol, Target
from tests.dataplane.conftest import LOOPBACK, Bench, ask, echo, endpoint, eventually, frontend, sends
from tests.dataplane.workers.harness import WorkerPool, until, worker_pool
from tests.support.loop_turns import counted_turns


async def at_rest(it: WorkerPool) -> bool:
    return not any(counters.active for counters in (await it.plane.counters()).values())


async def test_counters_of_a_frontend_without_clients_are_not_read(bench: Bench) -> None:
    engine = bench.plane.engine
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        await bench.serve(target, name="idle")
        assert list(engine.changed_counters()) == []
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        assert [change[0] for change in engine.changed_counters() if change] == [frontend()]
        assert list(engine.changed_counters()) == [None], "a connection is open and may send at any time"
        writer.write(b"y")
        await reader.readexactly(1)
        assert engine.counters()[frontend()].bytes_in == 2
        writer.close()
        await eventually(lambda: engine.counters()[frontend()].active == 0)
        await eventually(lambda: list(engine.changed_counters()) == [])
        assert engine.counters()[frontend()] == Counters(accepted=1, bytes_in=2, bytes_out=2)
        assert engine.counters()[frontend("idle")] == Counters()


async def test_frontends_whose_endpoints_have_not_failed_are_not_asked_for_ejected_ones(bench: Bench) -> None:
    engine, dead = bench.plane.engine, Target(Address("127.0.0.1"), 9)
    for name in ("web", "gone", "idle"):
        await bench.serve(dead, name=name)
    for name in ("web", "gone"):
        await bench.plane.send([MarkEndpoint(frontend(name), dead, "refused")])
    await bench.plane.send([Retire(frontend("gone"))])
    assert [found[0] for found in engine.ejected() if found] == [frontend("web")]
    await bench.plane.send([MarkEndpoint(frontend("web"), dead, None)])
    assert list(engine.ejected()) == [None]
    assert list(engine.ejected()) == []


async def test_connections_of_a_retired_frontend_do_not_count_for_a_new_one_of_its_name(bench: Bench) -> None:
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


async def test_queries_over_all_frontends_yield_to_the_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "SLICE_S", 0.0)
    names = [f"s{number}" for number in range(20)]
    async with endpoint(sends("hello")) as target:
        for name in names:
            assert await ask(await bench.serve(target, name=name)) == "hello"
        await eventually(lambda: not bench.plane.open_connections)
        async with counted_turns() as turns:
            both = await asyncio.gather(bench.plane.counters(), bench.plane.counters())
            assert turns.count >= len(names) - 1
            for found in both:
                assert {name: counters.accepted for name, counters in found.items()} == {frontend(n): 1 for n in names}
            for name in names:
                await bench.plane.send([MarkEndpoint(frontend(name), target, "refused")])
            turns.count = 0
            assert (await bench.plane.ejected()).keys() == {frontend(name) for name in names}
            assert turns.count >= len(names) - 1
            turns.count = 0
            await bench.plane.retire()
            assert turns.count >= len(names) - 1
            assert await bench.plane.counters() == {}


async def test_many_counters_are_reported_once_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker_pool(1) as it, endpoint(sends("hello")) as target:
        names = [f"s{number}" for number in range(2 * COUNTERS_PER_FRAME + 10)]
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
        assert max(len(piece.counters) for piece in pieces) == COUNTERS_PER_FRAME
        assert {name for piece in pieces for name, _ in piece.counters} == {frontend(name) for name in names}
        assert all(counters.accepted == 1 for counters in (await it.plane.counters()).values())
        pieces.clear()
        await it.plane.counters()
        assert [(piece.counters, piece.more) for piece in pieces] == [((), False)]


async def test_sums_never_fall_while_workers_die() -> None:
    async with worker_pool(2) as it, endpoint(sends("hello")) as target:
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
        # A dead worker loses what it had not reported: its last client at most, as counters are read after each client.
        assert asked - 3 <= last.accepted <= asked + lost


async def test_counters_in_flight_do_not_count_for_a_new_frontend_of_the_same_name() -> None:
    async with worker_pool(2) as it, endpoint(sends("hello")) as target:
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


def test_a_frame_is_bounded_by_what_one_turn_decodes() -> None:
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


# A worker in this process, its turns run by the test.


@pytest.fixture
def channel_and_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel[Report], Worker]]:
    monkeypatch.setattr(Worker, "_listen_to_signals", lambda self: None)
    ours, theirs = socket.socketpair()
    channel: Channel[Report] = Channel(ours, Report)
    columns = Columns(1)
    worker = Worker(theirs, number=0, shared_rows=SharedRows(columns.fd, row=0), marker=Marker(), owner_prefix="")
    yield channel, worker
    worker._engine.close()
    worker._reactor.shut()
    worker._context.routes.close()
    channel.close()
    columns.close()
    theirs.close()


def turns_until_done(channel: Channel[Report], worker: Worker) -> int:
    for turns in range(1, 1000):
        worker._reactor.turn()
        if any(isinstance(report, DoneReply) for report, _ in channel.receive()):
            return turns
    raise AssertionError("no reply")


def test_a_long_request_is_interrupted_every_slice(
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
    assert quick == 2, "the second because sockets are closed at the end of a turn"
    assert slow > len(messages) // 4
    channel.send(Apply(3, (SetEndpoints(frontend(), (Target(LOOPBACK, 1),)),) * len(messages)))
    assert turns_until_done(channel, worker) <= 3, "all messages of one frontend are applied in one turn"
