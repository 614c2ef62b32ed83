"""A UDP session moves to another process with its socket towards the endpoint."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import Listen, SetEndpoints, Tune
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.udp.state import SessionState
from kubeproxy.model import Protocol, Target
from tests.dataplane.conftest import LOOPBACK, frontend


class Process:
    """An engine that serves one UDP frontend at a port of its own."""

    def __init__(self, *targets: Target) -> None:
        self.reactor = Reactor()
        self.context = Context(reactor=self.reactor, budget=DescriptorBudget(100), send=send_backlogs)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((LOOPBACK, 0))
        self.sock.setblocking(False)
        self.engine = Engine(
            self.context,
            open_socket=lambda message: self.sock,
            close_socket=socket.socket.close,
            rng=random.Random(1),
        )
        listen = Listen(frontend(), Protocol.UDP, LOOPBACK, self.sock.getsockname()[1])
        assert not self.engine.handle((listen, SetEndpoints(frontend(), targets)))

    @property
    def address(self) -> tuple[str, int]:
        address: tuple[str, int] = self.sock.getsockname()
        return address

    def active(self) -> int:
        return self.engine.counters()[frontend()].active

    def close(self) -> None:
        self.engine.close()
        self.reactor.turn()
        self.context.routes.close()
        self.reactor.shut()


class Stage:
    """A client, an endpoint, and two processes."""

    def __init__(self) -> None:
        self.client, self.endpoint = udp(), udp()
        self.target = Target(LOOPBACK, self.endpoint.getsockname()[1])
        self.old, self.new = Process(self.target), Process(self.target)

    def turn(self) -> None:
        self.old.reactor.turn(0.001)
        self.new.reactor.turn()

    def receive(self, sock: socket.socket) -> tuple[bytes, tuple[str, int]]:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self.turn()
            with contextlib.suppress(BlockingIOError):
                return sock.recvfrom(100)
        raise TimeoutError

    def ask(self, word: bytes, process: Process) -> tuple[str, int]:
        """Send a word by a process; where it comes from at the endpoint."""
        self.client.sendto(word, process.address)
        said, source = self.receive(self.endpoint)
        assert said == word
        return source

    def move(self, **changed: Any) -> None:
        (session,) = self.old.engine.movable()
        frozen = session.freeze()
        assert frozen is not None
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(frozen.state), type=SessionState)
        state = msgspec.structs.replace(state, **changed)
        claimed = self.new.engine.claim(state, [socket.dup(frozen.descriptors[0])])
        assert claimed is not None
        frozen.close()
        self.new.engine.adopt(claimed)
        assert self.old.active() == 0
        assert self.old.context.budget.used == 0
        assert self.old.reactor.turn() == 0

    def close(self) -> None:
        self.old.close()
        self.new.close()
        self.client.close()
        self.endpoint.close()


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOOPBACK, 0))
    sock.setblocking(False)
    return sock


@pytest.fixture
def stage() -> Iterator[Stage]:
    it = Stage()
    yield it
    it.close()


def test_the_endpoint_sees_the_same_client(stage: Stage) -> None:
    source = stage.ask(b"one", stage.old)
    stage.move()
    assert stage.ask(b"two", stage.new) == source
    stage.endpoint.sendto(b"answer", source)
    assert stage.receive(stage.client) == (b"answer", stage.new.address)
    assert stage.new.active() == 1


def test_answers_wait_until_the_client_sends(stage: Stage) -> None:
    """Before that, connection tracking would not translate them, and the client's next datagram would not pass."""
    source = stage.ask(b"one", stage.old)
    stage.move()
    stage.endpoint.sendto(b"early", source)
    for _ in range(20):
        stage.turn()
    with pytest.raises(BlockingIOError):
        stage.client.recv(100)
    stage.ask(b"two", stage.new)
    assert stage.receive(stage.client) == (b"early", stage.new.address)


def test_a_session_that_began_meanwhile_passes_on_its_answers(stage: Stage) -> None:
    source = stage.ask(b"one", stage.old)
    other = stage.ask(b"two", stage.new)
    assert other != source
    stage.move()
    assert stage.ask(b"three", stage.new) == source
    for word, address in ((b"first", source), (b"second", other)):
        stage.endpoint.sendto(word, address)
        assert stage.receive(stage.client) == (word, stage.new.address)
    assert stage.new.active() == 2


def test_an_older_session_is_not_replaced(stage: Stage) -> None:
    """A datagram that was under way to the old process makes a session there, which comes after the moved one."""
    source = stage.ask(b"one", stage.old)
    stage.move()
    late = stage.ask(b"two", stage.old)
    stage.move()
    assert stage.ask(b"three", stage.new) == source
    assert late != source


def test_an_error_of_the_endpoint_moves_with_the_socket(stage: Stage) -> None:
    source = stage.ask(b"one", stage.old)
    stage.endpoint.close()
    stage.client.sendto(b"two", stage.old.address)
    deadline = time.monotonic() + 10
    while stage.old.engine.counters()[frontend()].bytes_in < 6:
        assert time.monotonic() < deadline
        stage.old.reactor.turn()
    stage.move()
    stage.endpoint = udp()
    target = Target(LOOPBACK, stage.endpoint.getsockname()[1])
    stage.new.engine.handle((SetEndpoints(frontend(), (stage.target, target)),))
    assert stage.ask(b"three", stage.new) != source


def test_it_ends_when_it_is_idle(stage: Stage) -> None:
    stage.ask(b"one", stage.old)
    stage.move()
    stage.new.engine.handle((Tune(udp_idle_s=0.01),))
    deadline = time.monotonic() + 10
    while stage.new.active():
        assert time.monotonic() < deadline
        stage.new.reactor.turn(0.01)
        stage.new.engine._sessions._sweep()
    assert stage.new.context.budget.used == 0


def test_of_all_sessions_the_idlest_makes_room(stage: Stage) -> None:
    """Also if it has come last, because it has moved here."""
    stage.ask(b"one", stage.old)
    idle, talking = stage.client, udp()
    with idle, talking:
        stage.client = talking
        source = stage.ask(b"two", stage.new)
        stage.move(idle_s=10.0)
        stage.new.engine.handle((Tune(udp_sessions_max=2),))
        with udp() as stage.client:
            stage.ask(b"three", stage.new)
        stage.client = talking
        assert stage.ask(b"four", stage.new) == source


def test_the_endpoint_has_left_the_service(stage: Stage) -> None:
    """The new instance may know that before the session arrives: the next datagram goes to another endpoint."""
    stage.ask(b"one", stage.old)
    with stage.endpoint:
        stage.endpoint = udp()
        target = Target(LOOPBACK, stage.endpoint.getsockname()[1])
        stage.new.engine.handle((SetEndpoints(frontend(), (target,)),))
        stage.move()
        stage.ask(b"two", stage.new)


def test_no_room_and_no_frontend(stage: Stage) -> None:
    source = stage.ask(b"one", stage.old)
    (session,) = stage.old.engine.movable()
    frozen = session.freeze()
    assert frozen is not None
    stage.new.engine.handle((Tune(udp_sessions_max=0),))
    assert stage.new.engine.claim(frozen.state, frozen.descriptors) is None
    nowhere = msgspec.structs.replace(frozen.state, frontend=frontend("another"))
    assert stage.new.engine.claim(nowhere, frozen.descriptors) is None
    stage.new.engine.handle((Tune(),))
    assert isinstance(frozen.state, SessionState)
    wrong = msgspec.structs.replace(frozen.state, peer=frozen.state.peer[:-1])
    assert stage.new.engine.claim(wrong, frozen.descriptors) is None
    assert stage.new.context.budget.used == 0
    frozen.thaw()
    assert stage.ask(b"two", stage.old) == source
    stage.endpoint.sendto(b"answer", source)
    assert stage.receive(stage.client) == (b"answer", stage.old.address)
