"""Connections move from one worker's engine to another one's, whatever happens to either meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import SetEndpoints, Tune
from kubeproxy.dataplane.sockets.reuseport_program import place
from kubeproxy.dataplane.tcp.connection import Connection
from kubeproxy.dataplane.tcp.connection_state import ConnectionState, FlowState
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.workers import move_sender as mover_module
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.move_protocol import Load, Receipt
from kubeproxy.dataplane.workers.move_receiver import Adopter
from kubeproxy.dataplane.workers.move_sender import Mover
from kubeproxy.model import Address, Target
from tests.dataplane.conftest import (
    Bench,
    echo,
    endpoint,
    eventually,
    frontend,
    refusing_target,
    silent_target,
)
from tests.support.compiled_modules import of_sources

TARGET = Target(Address("192.0.2.1"), 80)


def no_socket(*ignored: Any) -> Any:
    raise OSError


class Worker:
    """An engine on a reactor, without listeners."""

    def __init__(self, *, limit: int = 10_000) -> None:
        self.reactor = Reactor()
        self.context = Context(reactor=self.reactor, budget=DescriptorBudget(limit), send=send_backlogs)
        self.engine = Engine(self.context, open_socket=no_socket, close_socket=no_socket, rng=random.Random(1))
        self.idle: list[tuple[int, int]] = []
        """What the mover has reported."""
        self.ended = 0
        """Adopters that have ended."""
        self._parts: list[Mover | Adopter] = []

    def move_to(self, *ends: socket.socket) -> None:
        mover = Mover(self.reactor, self.engine, lambda moved, left, longest_s: self.idle.append((moved, left)))
        mover.add(list(enumerate(ends)), len(ends))
        self._parts.append(mover)

    def adopt(self, end: socket.socket) -> None:
        def on_end() -> None:
            self.ended += 1

        self._parts.append(Adopter(self.reactor, self.engine, end, on_end))

    def close(self) -> None:
        for part in self._parts:
            for end in part._ways if isinstance(part, Mover) else [part]:
                end._channel.close()
        self.engine.close()
        self.reactor.turn()
        self.context.routes.close()
        self.reactor.shut()


class Pair:
    """Client and endpoint of a connection, outside the proxy."""

    def __init__(self, worker: Worker) -> None:
        self.client, inside = socket.socketpair()
        self.endpoint, outside = socket.socketpair()
        worker.context.budget.take(2)
        state = worker.engine.claim(_state(), (inside.detach(), outside.detach()))
        assert state is not None
        worker.context.budget.give(2)
        state.thaw()

    def talks(self, turn: Callable[[], None]) -> bool:
        """Whether a word gets through in both directions."""
        for here, there in ((self.client, self.endpoint), (self.endpoint, self.client)):
            there.settimeout(0)
            try:
                here.send(b"word")
            except OSError:
                return False
            for _ in range(20):
                turn()
                with contextlib.suppress(BlockingIOError):
                    if there.recv(100) != b"word":
                        return False
                    break
            else:
                return False
        return True

    def close(self) -> None:
        self.client.close()
        self.endpoint.close()


def _state() -> Any:
    return ConnectionState(
        frontend=frontend(),
        target=TARGET,
        age_s=1.0,
        adopted=False,
        kept_alive=True,
        quiet_s=0.0,
        entry=None,
        up=FlowState(),
        down=FlowState(),
    )


class Move:
    """An old worker with connections, and new ones."""

    def __init__(self, count: int, *, new: int = 1, limit: int = 10_000) -> None:
        self.old = Worker()
        self.new = [Worker(limit=limit) for _ in range(new)]
        self.pairs = [Pair(self.old) for _ in range(count)]

    def begin(self) -> None:
        ends = []
        for worker in self.new:
            theirs, ours = socket.socketpair()
            ends.append(theirs)
            worker.adopt(ours)
        self.old.move_to(*ends)

    def turn(self) -> None:
        for worker in (self.old, *self.new):
            worker.reactor.turn()

    def until(self, condition: Callable[[], object], *, within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    @property
    def opens(self) -> list[int]:
        return [worker.engine.open for worker in (self.old, *self.new)]

    def all_talk(self) -> bool:
        return all(pair.talks(self.turn) for pair in self.pairs)

    def close(self) -> None:
        for worker in (self.old, *self.new):
            worker.close()
        for pair in self.pairs:
            pair.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Move]]:
    """Makes moves; afterwards no descriptor is left."""
    before = len(os.listdir("/proc/self/fd"))
    made: list[Move] = []

    def make(count: int, **settings: Any) -> Move:
        made.append(Move(count, **settings))
        return made[-1]

    yield make
    for move in made:
        move.close()
    assert len(os.listdir("/proc/self/fd")) == before


class Unwalked(set[Any]):
    """What is asked for every two seconds must not go over all connections."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


def test_all_connections_move_to_all_workers(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    move = make(300, new=2)
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.old.idle == [(300, 0)]
    left, *taken = move.opens
    assert (left, taken) == (0, [150, 150])
    assert move.all_talk()
    for worker in move.new:
        frozen = worker.engine.movable()[0].freeze()
        assert frozen is not None
        frozen.thaw()
        monkeypatch.setattr(worker.context, "live", Unwalked(worker.context.live))
    statuses = [worker.engine.worker_status() for worker in move.new]
    monkeypatch.undo()
    assert (sum(each.adopted for each in statuses), sum(each.adopted_open for each in statuses)) == (300, 300)
    move.pairs[0].close()
    move.pairs[1].close()
    move.until(lambda: sum(move.opens) == 298)
    assert sum(worker.engine.worker_status().adopted_open for worker in move.new) == 298
    assert move.old.context.budget.used == 0


def test_a_few_connections_are_divided_among_the_workers(make: Callable[..., Move]) -> None:
    move = make(9, new=3)
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.opens == [0, 3, 3, 3]


def test_what_begins_later_follows(make: Callable[..., Move]) -> None:
    move = make(1)
    move.begin()
    move.until(lambda: move.old.idle)
    move.pairs.append(Pair(move.old))
    move.until(lambda: move.old.idle[-1:] == [(2, 0)])
    assert move.all_talk()


def test_nothing_is_kept_for_a_receiver_that_hangs_from_the_begin(
    make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_module, "FIRST_S", 0.1)
    move = make(10)
    (one, taken), (other, hung) = socket.socketpair(), socket.socketpair()
    with hung:
        move.new[0].adopt(taken)
        move.old.move_to(one, other)
        move.until(lambda: move.opens == [0, 10], within_s=4)  # before ANSWER_S
    assert move.all_talk()


def test_a_receiver_without_room_leaves_the_rest_where_it_is(make: Callable[..., Move]) -> None:
    move = make(50, limit=40)
    move.begin()
    move.until(lambda: move.old.idle)
    left, taken = move.opens
    assert (left + taken, taken > 0, left > 0) == (50, True, True)
    assert move.new[0].context.budget.used <= 40 * 7 // 8
    assert move.all_talk()


def test_room_that_comes_later_is_used(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover_module, "FULL_S", 0.05)
    move = make(50, limit=40)
    move.begin()
    move.until(lambda: move.old.idle)
    move.new[0].context.budget.limit = 1000
    move.until(lambda: move.old.idle[-1] == (50, 0))
    assert move.all_talk()


def test_a_connection_that_cannot_be_claimed_stays_and_is_not_tried_again_at_once(
    make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_module, "REFUSED_S", 1000.0)
    move = make(10)
    claim, asked = move.new[0].engine.claim, []

    def choosy(state: Any, descriptors: Any) -> Any:
        asked.append(state)
        return claim(state, descriptors) if len(asked) % 2 else None

    monkeypatch.setattr(move.new[0].engine, "claim", choosy)
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.opens == [5, 5]
    assert move.all_talk()
    move.pairs.append(Pair(move.old))
    move.until(lambda: move.old.idle[-1] == (6, 5))
    assert move.opens == [5, 6]
    assert len(asked) == 11


def test_what_was_refused_is_tried_again(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover_module, "REFUSED_S", 0.05)
    move = make(10)
    claim = move.new[0].engine.claim
    monkeypatch.setattr(move.new[0].engine, "claim", lambda state, descriptors: None)
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.opens == [10, 0]
    monkeypatch.setattr(move.new[0].engine, "claim", claim)
    move.until(lambda: move.opens == [0, 10])
    assert move.all_talk()


def test_a_sender_gets_no_more_than_the_room(make: Callable[..., Move]) -> None:
    """Whatever it sends, the last eighth is for new clients."""
    engine = make(0, limit=16).new[0].engine
    assert [engine.claim(_state(), (0, 1)) is None for _ in range(8)] == [False] * 7 + [True]


@of_sources
def test_no_memory_for_one_connection(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, or stays where it is, and all others go on."""
    move, begun, asked = make(10), [], []
    claim = move.new[0].engine.claim

    class Scarce(Connection):
        def __init__(self, *args: Any, **named: Any) -> None:
            begun.append(self)
            if len(begun) == 3:
                raise MemoryError
            super().__init__(*args, **named)

    def scarce(state: Any, descriptors: Any) -> Any:
        asked.append(state)
        if len(asked) == 7:
            raise MemoryError
        return claim(state, descriptors)

    monkeypatch.setattr("kubeproxy.dataplane.tcp.connection.Connection", Scarce)
    monkeypatch.setattr(move.new[0].engine, "claim", scarce)
    move.begin()
    move.until(lambda: move.old.idle)
    monkeypatch.undo()
    assert move.opens == [1, 8]
    assert sum(pair.talks(move.turn) for pair in move.pairs) == 9
    assert move.new[0].context.budget.used == 16


def first_load(move: Move) -> tuple[Channel[Load], list[tuple[Load, tuple[int, ...]]]]:
    """A receiver's end of a move for which a first load has arrived, and what has arrived."""
    theirs, ours = socket.socketpair()
    channel: Channel[Load] = Channel(ours, Load)
    channel.send(Receipt(0, 1000))
    move.old.move_to(theirs)
    loads: list[tuple[Load, tuple[int, ...]]] = []

    def read() -> bool:
        loads.extend(channel.receive())
        return bool(loads)

    move.until(read)
    return channel, loads


@pytest.mark.parametrize("with_receipt", [False, True])
def test_a_sender_that_ends_resets_what_is_under_way(make: Callable[..., Move], with_receipt: bool) -> None:
    """Its connections are back, to be reset with all others, unless they have been taken."""
    move = make(5)
    channel, loads = first_load(move)
    if with_receipt:
        channel.send(Receipt(loads[0][0].number, 0))
    (mover,) = move.old._parts
    assert isinstance(mover, Mover)
    mover.stop()
    assert move.opens[0] == (0 if with_receipt else 5)
    for descriptor in loads[0][1]:
        os.close(descriptor)
    channel.close()


@pytest.mark.parametrize("with_receipt", [False, True])
def test_a_receiver_that_dies(make: Callable[..., Move], with_receipt: bool) -> None:
    """Until it has sent the receipt, it has touched nothing, and all goes on in the old worker."""
    move = make(5)
    channel, loads = first_load(move)
    assert move.opens[0] == 0
    ((load, descriptors),) = loads
    assert (len(load.connections), len(descriptors)) == (5, 10)
    if with_receipt:
        channel.send(Receipt(load.number, 0))
    for descriptor in descriptors:
        os.close(descriptor)
    channel.close()
    move.until(lambda: move.old.idle)
    assert move.old.idle[-1] == ((5, 0) if with_receipt else (0, 5))
    assert move.all_talk() is not with_receipt


def test_what_a_dead_receiver_has_not_taken_moves_to_another(make: Callable[..., Move]) -> None:
    move = make(5)
    (theirs, ours), (one, other) = socket.socketpair(), socket.socketpair()
    channel: Channel[Load] = Channel(ours, Load)
    channel.send(Receipt(0, 1000))
    move.old.move_to(theirs, one)
    loads: list[tuple[Load, tuple[int, ...]]] = []

    def read() -> bool:
        loads.extend(channel.receive())
        return bool(loads)

    move.until(read)
    for descriptor in loads[0][1]:
        os.close(descriptor)
    channel.close()
    move.new[0].adopt(other)
    move.until(lambda: move.opens == [0, 5])
    assert move.all_talk()


def test_no_memory_for_a_receipt(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the channel, and is read later: what is taken must not go on in two places."""
    move = make(5)
    move.begin()
    (mover,) = move.old._parts
    assert isinstance(mover, Mover)
    decoder = mover._ways[0]._channel._decoder
    decode = decoder._decode
    failed: list[int] = []

    def scarce(start: int, length: int) -> Any:
        if len(failed) < 2:
            failed.append(start)
            raise MemoryError
        return decode(start, length)

    monkeypatch.setattr(decoder, "_decode", scarce)
    move.until(lambda: move.old.idle)
    assert (move.opens, len(failed)) == ([0, 5], 2)
    assert move.all_talk()


def test_each_receiver_without_room_is_asked_again(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover_module, "FULL_S", 0.05)
    move = make(50, new=2, limit=20)
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.opens[0] > 0
    move.new[1].context.budget.limit = 1000
    move.until(lambda: move.opens[0] == 0)
    assert move.all_talk()


@pytest.mark.parametrize("dies", [True, False])
def test_what_is_for_another_worker_keeps_nothing_back(
    make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """A UDP session is for one worker alone, which may have no room, or have ended."""

    class Session:
        client = next(client for client in map("192.0.2.{}".format, range(99)) if place(client, count=2) == 1)

    move, session = make(1), Session()
    movable = move.old.engine.movable
    monkeypatch.setattr(move.old.engine, "movable", lambda: (session, *movable()))
    (theirs, ours), (one, other) = socket.socketpair(), socket.socketpair()
    channel: Channel[Load] = Channel(other, Load)
    move.new[0].adopt(ours)
    move.old.move_to(theirs, one)
    move.until(lambda: move.opens == [0, 1])
    if dies:
        channel.close()
    else:
        channel.send(Receipt(0, 0))
    move.pairs.append(Pair(move.old))
    move.until(lambda: move.opens == [0, 2] and move.old.context.budget.used == 0)
    channel.close()


def test_a_sender_that_dies_has_lost_nothing(make: Callable[..., Move]) -> None:
    """The load that it has sent is in the channel, whatever becomes of its own descriptors."""
    move = make(5)
    theirs, ours = socket.socketpair()
    channel: Channel[Receipt] = Channel(theirs, Receipt)
    loads = [each.freeze() for each in move.old.engine.movable()]
    frozen = [each for each in loads if each is not None]
    channel.send(Load(1, tuple(each.state for each in frozen)), [fd for each in frozen for fd in each.descriptors])
    for each in frozen:
        each.close()
    channel.close()
    move.new[0].adopt(ours)
    move.until(lambda: move.new[0].ended)
    assert move.opens == [0, 5]
    assert move.all_talk()


def test_a_sender_that_gave_up_and_then_died(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver that wakes up late does not go on with what the sender has gone on with."""
    monkeypatch.setattr(mover_module, "ANSWER_S", 0.1)
    move = make(5)
    move.begin()
    deadline = time.monotonic() + 20
    while not move.old.idle:
        assert time.monotonic() < deadline
        move.old.reactor.turn(0.01)
    move.old.engine.close()
    move.until(lambda: move.new[0].ended)
    assert move.opens == [0, 0]


def test_a_receiver_that_hangs_is_given_up(make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot take the load over any more when it wakes up: the connections are the old worker's again."""
    monkeypatch.setattr(mover_module, "ANSWER_S", 0.1)
    move = make(5)
    move.begin()
    until = time.monotonic() + 20
    while not move.old.idle:
        assert time.monotonic() < until
        move.old.reactor.turn(0.01)
    assert move.old.idle == [(0, 5)]
    move.until(lambda: move.new[0].ended)
    assert move.opens == [5, 0]
    assert move.new[0].context.budget.used == 0
    assert move.all_talk()


def test_a_load_is_taken_back_when_too_many_descriptors_are_under_way(
    make: Callable[..., Move], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts those of all processes of a user."""
    monkeypatch.setattr(mover_module, "FULL_S", 0.05)
    send = Channel.send
    refused: list[Any] = []

    def scarce(self: Channel[Any], frame: Any, descriptors: Any = ()) -> None:
        if len(descriptors) and not refused:
            refused.append(frame)
            raise OSError(errno.ETOOMANYREFS, "too many references")
        send(self, frame, descriptors)

    monkeypatch.setattr(Channel, "send", scarce)
    move = make(5)
    move.begin()
    move.until(lambda: move.old.idle[-1:] == [(5, 0)])
    assert refused
    assert move.all_talk()


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\0\0\0\1\0\0\xc1"])
def test_garbage_ends_the_channel_alone(make: Callable[..., Move], garbage: bytes) -> None:
    move = make(3)
    (one, ours), (other, theirs) = socket.socketpair(), socket.socketpair()
    with one, other:
        move.new[0].adopt(ours)
        move.old.move_to(theirs)
        one.send(garbage)
        other.send(garbage)
        move.until(lambda: move.new[0].ended and move.old.idle)
    assert move.opens == [3, 0]
    assert move.all_talk()


def test_a_receiver_without_free_descriptors_takes_nothing(make: Callable[..., Move]) -> None:
    """The kernel drops what exceeds RLIMIT_NOFILE. The budget knows nothing of it, and the whole load stays."""
    move = make(5)
    move.begin()
    (mover,) = move.old._parts
    assert isinstance(mover, Mover)
    for _ in range(100):
        move.old.reactor.turn(0.01)
        if mover.under_way:
            break
    assert mover.under_way == 5
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 3, hard))
    try:
        for _ in range(100):
            move.new[0].reactor.turn(0.01)
            if move.new[0].ended:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    move.until(lambda: move.old.idle)
    assert move.opens == [5, 0]
    assert move.all_talk()


def test_descriptors_that_do_not_match_the_load_are_closed(make: Callable[..., Move]) -> None:
    move = make(1)
    theirs, ours = socket.socketpair()
    channel: Channel[Receipt] = Channel(theirs, Receipt)
    move.new[0].adopt(ours)
    channel.send(Load(1, (_state(),)), [theirs.fileno()])
    move.until(lambda: move.new[0].ended)
    assert move.opens == [1, 0]
    channel.close()


def test_descriptors_without_a_frame_are_closed(make: Callable[..., Move]) -> None:
    """A sender cannot use up what the receiver may open."""
    move = make(1)
    theirs, ours = socket.socketpair()
    with theirs:
        move.new[0].adopt(ours)
        for part in (b"\0\xff\xff\xff\0\0", b"x", b"x"):  # the header of a long frame, and a bit of its body
            socket.send_fds(theirs, [part], [theirs.fileno()] * 200)
        move.until(lambda: move.new[0].ended)
    assert move.opens == [1, 0]


def test_connections_that_end_while_they_move(make: Callable[..., Move]) -> None:
    """Their ends arrive in the other worker."""
    move = make(100)
    theirs, ours = socket.socketpair()
    move.old.move_to(theirs)
    for pair in move.pairs[::2]:
        pair.client.close()
    move.new[0].adopt(ours)
    move.until(lambda: move.old.idle and move.opens == [0, 100])
    for pair in move.pairs[::2]:
        pair.endpoint.settimeout(5)
        move.turn()
        assert pair.endpoint.recv(10) == b""
    assert all(pair.talks(move.turn) for pair in move.pairs[1::2])


async def test_a_dial_that_is_retried_moves_when_an_endpoint_has_answered(bench: Bench) -> None:
    """With the bytes that the client has sent meanwhile."""
    new, idle = Worker(), list[tuple[int, int]]()
    theirs, ours = socket.socketpair()
    new.adopt(ours)
    engine, reactor = bench.plane.engine, bench.plane._context.reactor

    def turned(condition: bool) -> bool:
        new.reactor.turn()
        return condition

    await bench.plane.send([Tune(dial_steps_s=(0.2, 5.0))])
    with silent_target() as silent, refusing_target() as refusing:
        async with endpoint(echo) as alive:
            reader, writer = await asyncio.open_connection(*await bench.serve(silent))
            writer.write(b"early")
            await eventually(lambda: engine.open == 1)
            mover = Mover(reactor, engine, lambda moved, left, longest_s: idle.append((moved, left)))
            mover.add([(0, theirs)], 1)
            await eventually(lambda: turned(idle == [(0, 1)]))
            await bench.plane.send([SetEndpoints(frontend(), (silent, refusing, alive))])
            await eventually(lambda: turned(idle[-1:] == [(1, 0)]))
            writer.write(b" and late")
            hearing = asyncio.ensure_future(reader.readexactly(len(b"early and late")))
            await eventually(lambda: turned(hearing.done()))
            assert hearing.result() == b"early and late"
            writer.close()
            await eventually(lambda: turned(new.engine.open == 0))
    mover._ways[0]._channel.close()
    new.close()


def test_dials_stay(make: Callable[..., Move]) -> None:
    """Only what is a connection moves."""
    move = make(1)

    class Dial:
        since = 0.0
        targets = ()

        def abort(self) -> None:
            move.old.context.live.discard(self)

    move.old.context.live.add(Dial())
    move.begin()
    move.until(lambda: move.old.idle)
    assert move.old.idle == [(1, 1)]
