"""A connection is frozen at any point, moved to another process's context or back, and goes on.

Hypothesis chooses what client, endpoint and proxy do, in which order, and where the connection moves. Whatever happens,
the bytes that arrive are those that were sent, none twice, none missing, and the ends arrive after them.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.connection_log import Entry
from kubeproxy.dataplane.context import Context, FrontendCounters
from kubeproxy.dataplane.loop.reactor import EDGE, Reactor
from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.tcp.connection import Connection, FrozenConnection
from kubeproxy.dataplane.tcp.connection_state import BACKLOG_BYTES, ConnectionState, FlowState
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.tcp.half_closed import HalfClosedSweep
from kubeproxy.model import Address, Target
from tests.dataplane.conftest import LOOPBACK, frontend
from tests.support.clock import Clock

TARGET = Target(Address("192.0.2.1"), 80)
RESET = struct.pack("ii", 1, 0)
LOG = random.Random(7).randbytes(1 << 20)
"""What both sides send, again and again: no part of it repeats another."""


class Place:
    """A process that may serve the connection."""

    def __init__(self, *, limit: int = 64) -> None:
        self.clock = Clock()
        self.reactor = Reactor(clock=self.clock)
        self.context = Context(reactor=self.reactor, budget=DescriptorBudget(limit), send=send_backlogs)
        self.context.tune = Tune(access_log=True)
        self.counters = FrontendCounters()
        self.counters.frontend = frontend()
        self.balancer = Balancer(rng=random.Random(1))

    def settle(self) -> None:
        """Run turns until there is nothing to do."""
        for _ in range(200):
            if not self.reactor.turn():
                return

    def close(self) -> None:
        for live in list(self.context.live):
            live.abort()
        self.reactor.turn()
        self.context.pipes.close()
        self.context.routes.close()
        self.reactor.shut()


class Peer:
    """One end outside the proxy, with what it has sent and received."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent = self.received = 0
        self.said_all = self.heard_all = self.dead = False
        self.other: Peer = self

    def send(self, count: int, flags: int = 0) -> None:
        """Send some bytes, as many as there is room for."""
        if self.said_all or self.dead:
            return
        at = self.sent % len(LOG)
        try:
            self.sent += self.sock.send(LOG[at : at + count], flags)
        except BlockingIOError:
            pass
        except OSError:
            self.dead = True

    def urge(self) -> None:
        """Send a byte of urgent data."""
        self.send(1, socket.MSG_OOB)

    def receive(self, count: int) -> int:
        """Receive some bytes and compare them with what the other one has sent; their number."""
        if self.dead or self.heard_all:
            return 0
        try:
            data = self.sock.recv(count)
        except BlockingIOError:
            return 0
        except OSError:
            self.dead = True
            return 0
        at = self.received % len(LOG)
        expected = LOG[at : at + len(data)] + LOG[: max(0, at + len(data) - len(LOG))]
        assert data == expected, "other bytes, or in another order"
        self.received += len(data)
        assert self.received <= self.other.sent, "bytes doubled"
        if not data:
            self.heard_all = True
            assert self.other.said_all, "an end that nobody sent"
            assert self.received == self.other.sent, "the end came before all bytes"
        return len(data)

    def finish(self) -> None:
        """Send FIN."""
        if not self.dead:
            self.said_all = True
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with RST."""
        if not self.dead:
            self.dead = True
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.sock.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection with small buffers."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        outside = socket.socket()
        outside.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        outside.connect(listener.getsockname())
        inside, _ = listener.accept()
    for sock in (outside, inside):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    inside.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    return outside, inside


class Stage:
    """A connection between two peers, in one of two places."""

    def __init__(self) -> None:
        self.places = [Place(), Place()]
        self.at = 0
        pairs = [tcp_pair(), tcp_pair()]
        self.client, self.endpoint = (Peer(outside) for outside, _ in pairs)
        self.client.other, self.endpoint.other = self.endpoint, self.client
        place, (client, server) = self.places[0], (inside.detach() for _, inside in pairs)
        assert place.context.budget.take(2, place.counters.share)
        for fd in (client, server):
            place.reactor.add(fd, lambda what: None, EDGE)
        place.balancer.opened(TARGET)
        Connection(
            place.context,
            place.counters,
            place.balancer,
            client=client,
            endpoint=server,
            target=TARGET,
            since=place.reactor.now,
            entry=Entry(frontend(), Target(LOOPBACK, 5)),
        )

    @property
    def place(self) -> Place:
        return self.places[self.at]

    @property
    def connection(self) -> Connection | None:
        (live,) = self.place.context.live or (None,)
        assert live is None or isinstance(live, Connection)
        return live

    def freeze(self) -> FrozenConnection | None:
        return None if self.connection is None else self.connection.freeze()

    def move(self) -> None:
        """Move the connection to the other place, as two processes do by a channel."""
        frozen = self.freeze()
        if frozen is None:
            return
        assert not self.place.context.live
        assert not self.place.balancer.open
        data = msgspec.msgpack.encode(frozen.state)
        copies = [os.dup(descriptor) for descriptor in frozen.descriptors]
        there = self.places[1 - self.at]
        state = msgspec.msgpack.decode(data, type=ConnectionState)
        claimed = FrozenConnection.claim(there.context, there.counters, there.balancer, state, copies)
        assert claimed is not None
        frozen.close()
        claimed.thaw()
        self.at = 1 - self.at
        self.used_nothing(self.places[1 - self.at])

    def stay(self) -> None:
        """Freeze it, and go on in the same place: the other process had no room."""
        frozen = self.freeze()
        if frozen is not None:
            frozen.thaw()

    def turn(self) -> None:
        self.place.reactor.turn()
        self.places[1 - self.at].reactor.turn()

    def settle(self) -> None:
        for place in self.places:
            place.settle()

    def used_nothing(self, place: Place) -> None:
        place.reactor.turn()
        assert place.counters.active == 0
        assert not place.balancer.open
        assert place.context.pipes.in_use == 0
        assert place.counters.share.held == 0

    def close(self) -> None:
        for peer in (self.client, self.endpoint):
            peer.sock.close()
        for place in self.places:
            place.close()


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    before = len(os.listdir("/proc/self/fd"))
    it = Stage()
    try:
        yield it
    finally:
        it.close()
    assert len(os.listdir("/proc/self/fd")) == before


def act(it: Stage, step: tuple[str, int, int]) -> None:
    word, who, count = step
    peer = (it.client, it.endpoint)[who]
    acts: dict[str, Callable[[], Any]] = {
        "send": lambda: peer.send(count),
        "urge": peer.urge,
        "receive": lambda: peer.receive(count),
        "finish": peer.finish,
        "reset": peer.reset,
        "turn": it.turn,
        "move": it.move,
        "stay": it.stay,
    }
    acts[word]()


WORDS = ["send"] * 5 + ["receive"] * 3 + ["turn"] * 6 + ["move"] * 4 + ["stay", "urge", "finish"]
SIZES = st.sampled_from([1, 100, 65_535, 65_536, 65_537, 200_000])
steps = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 1), SIZES), max_size=60)
BULK = [("send", 0, 200_000), ("send", 0, 200_000), ("turn", 0, 1)] * 12
"""A pipe holds bytes that a slow reader does not take."""


def run_until(it: Stage, over: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Have both peers receive, until it is over: where a packet was dropped, TCP repeats it after a while."""
    deadline = time.monotonic() + within_s
    while not over():
        assert time.monotonic() < deadline, "the connection stands still"
        it.turn()
        if not it.client.receive(200_000) + it.endpoint.receive(200_000):
            it.place.reactor.turn(0.001)
    it.settle()


@settings(max_examples=150, deadline=None)
@given(steps)
@example([*BULK, ("move", 0, 0), ("turn", 0, 0), ("receive", 1, 65_536), ("turn", 0, 0), ("move", 0, 0)])
@example([*BULK, ("finish", 0, 0), ("turn", 0, 0), ("move", 0, 0), ("move", 0, 0), ("turn", 0, 0)])
@example([("send", 0, 100), ("finish", 0, 0), ("turn", 0, 0), ("move", 0, 0), ("send", 1, 100), ("move", 0, 0)])
@example([("send", 0, 1), ("turn", 0, 0), ("send", 0, 200_000), ("urge", 0, 0)])
@example([("urge", 0, 0), ("send", 0, 100), ("move", 0, 0), ("turn", 0, 0), ("urge", 0, 0), ("move", 0, 0)])
def test_all_bytes_arrive_once_and_in_order(script: list[tuple[str, int, int]]) -> None:
    with stage() as it:
        for step in script:
            act(it, step)
        for peer in (it.client, it.endpoint):
            peer.finish()
        run_until(it, lambda: it.client.heard_all and it.endpoint.heard_all)
        assert (it.endpoint.received, it.client.received) == (it.client.sent, it.endpoint.sent)
        assert not it.place.context.live
        (ended,) = it.place.context.connection_log.take()
        assert (ended.bytes_in, ended.bytes_out, ended.reason) == (it.client.sent, it.endpoint.sent, "closed")
        assert (ended.frontend, ended.client, ended.attempts) == (frontend(), Target(LOOPBACK, 5), 0)
        meters = [(place.counters.in_meter[0], place.counters.out_meter[0]) for place in it.places]
        assert tuple(map(sum, zip(*meters, strict=True))) == (it.client.sent, it.endpoint.sent)
        for place in it.places:
            it.used_nothing(place)


SLOW_READER = [("send", 0, 65_535), ("turn", 0, 1)] * 120
"""Bytes that were read, and that a slow reader does not take."""


def test_the_backlog_moves_with_it() -> None:
    with stage() as it:
        for step in SLOW_READER:
            act(it, step)
        frozen = it.freeze()
        assert frozen is not None
        assert frozen.state.up.backlog
        assert not frozen.state.up.piped
        frozen.thaw()
        it.move()
        it.client.finish()
        run_until(it, lambda: it.endpoint.heard_all)
        assert it.endpoint.received == it.client.sent


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(0, 1), steps)
@example([*BULK], 0, [("move", 0, 0), ("turn", 0, 0)])
@example([("send", 0, 65_536), ("turn", 0, 0)], 1, [("move", 0, 0), ("turn", 0, 0)])
def test_a_reset_arrives_at_the_other_side(
    before: list[tuple[str, int, int]], who: int, after: list[tuple[str, int, int]]
) -> None:
    """Bytes may be lost with it, but none arrives twice or in another order."""
    with stage() as it:
        for step in before:
            act(it, step)
        peer = (it.client, it.endpoint)[who]
        peer.reset()
        for step in after:
            act(it, step)

        def over() -> bool:
            peer.other.send(1)  # a reset that meets a full window may be ignored; the answer to this byte is not
            return not it.place.context.live

        run_until(it, over)
        assert not it.place.context.live
        for place in it.places:
            it.used_nothing(place)


def test_the_bytes_in_a_pipe_move_with_it() -> None:
    with stage() as it:
        for step in BULK:
            act(it, step)
        frozen = it.freeze()
        assert frozen is not None
        assert frozen.state.up.piped
        assert len(frozen.descriptors) == frozen.state.descriptors == 4
        frozen.thaw()
        it.move()
        assert it.place.context.pipes.in_use == 1
        it.client.finish()
        run_until(it, lambda: it.endpoint.heard_all)
        assert it.endpoint.received == it.client.sent
        it.endpoint.finish()
        run_until(it, lambda: it.connection is None)
        assert not it.place.context.pipes._idle, "no other connection gets a pipe that another process may have"


def test_what_is_known_of_it_moves() -> None:
    with stage() as it:
        it.client.send(100)
        it.settle()
        assert it.endpoint.receive(200) == 100
        it.client.finish()
        it.settle()
        first = it.connection
        assert first is not None
        first.keep_alive(7)
        sweep = HalfClosedSweep(it.place.context)
        sweep._look()
        it.place.clock.now += 40.0
        it.place.reactor.turn()
        it.move()
        second = it.connection
        assert second is not None
        now = it.place.reactor.now
        assert (second.target, second.kept_alive, second.half_closed, second.unanswered) == (TARGET, True, True, True)
        assert (second.moved, second.since, second.quiet) == (100, now - 40.0, (100, now - 40.0))
        it.place.context.tune = Tune(unanswered_idle_s=39.0, access_log=True)
        HalfClosedSweep(it.place.context)._look()
        assert it.connection is None
        (ended,) = it.place.context.connection_log.take()
        assert (ended.reason, ended.duration_s, ended.bytes_in) == ("idle", 40.0, 100)


@pytest.mark.parametrize("change", [
    {"up": FlowState(count=-1)},
    {"up": FlowState(count=(1 << 64) - 1)},
    {"down": FlowState(piped=-1)},
    {"down": FlowState(piped=(1 << 64) - 1)},
    {"up": FlowState(backlog=bytes(BACKLOG_BYTES + 1))},
    {"age_s": float("nan")},
    {"age_s": float("inf")},
    {"quiet_s": -1.0},
    {"entry": Entry(frontend(), Target(LOOPBACK, 5), began=1e30)},
])  # fmt: skip
def test_what_no_worker_sends_is_no_state(change: dict[str, Any]) -> None:
    """The worker that sends it may be somebody else's, and must not end the one that receives it."""
    with stage() as it:
        frozen = it.freeze()
        assert frozen is not None
        wrong = msgspec.structs.replace(frozen.state, **change)
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=ConnectionState)
        frozen.thaw()


def test_the_place_that_it_has_left_gets_no_event_of_it() -> None:
    """The kernel would go on reporting a socket that another process has open, for a number that is used again."""
    with stage() as it:
        it.move()
        it.client.send(100)
        assert it.places[0].reactor.turn() == 0
        assert it.places[1].reactor.turn() > 0


def test_the_exit_of_the_process_that_it_has_left_resets_nothing() -> None:
    """Also if that process has never read what both sides have sent: a close with unread bytes would send RST."""
    with stage() as it:
        it.client.send(100)
        it.endpoint.send(200)
        it.move()
        it.places[0].close()
        it.places[0] = Place()
        for peer in (it.client, it.endpoint):
            assert peer.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            peer.finish()
        run_until(it, lambda: it.client.heard_all and it.endpoint.heard_all)
        assert (it.endpoint.received, it.client.received) == (100, 200)


def watched(place: Place) -> int:
    """How many descriptors the kernel watches for a place."""
    return Path(f"/proc/self/fdinfo/{place.reactor._epoll.fileno()}").read_text().count("tfd:")


def test_it_ends_though_another_process_still_has_its_descriptors() -> None:
    """That process may be slow to close them, or hang."""
    with stage() as it:
        frozen = it.freeze()
        assert frozen is not None
        there, copies = it.places[1], [os.dup(descriptor) for descriptor in frozen.descriptors]
        before = watched(there)
        claimed = FrozenConnection.claim(there.context, there.counters, there.balancer, frozen.state, copies)
        assert claimed is not None
        claimed.thaw()
        it.at = 1
        it.client.finish()
        it.endpoint.finish()
        run_until(it, lambda: it.client.heard_all and it.endpoint.heard_all)
        assert it.connection is None
        assert watched(there) == before
        frozen.close()


def test_no_room_claims_nothing() -> None:
    with stage() as it:
        frozen = it.freeze()
        assert frozen is not None
        full = Place(limit=1)
        assert (
            FrozenConnection.claim(full.context, full.counters, full.balancer, frozen.state, frozen.descriptors) is None
        )
        assert (
            FrozenConnection.claim(full.context, full.counters, full.balancer, frozen.state, frozen.descriptors[:1])
            is None
        )
        assert full.context.budget.used == 0
        full.close()
        frozen.thaw()
