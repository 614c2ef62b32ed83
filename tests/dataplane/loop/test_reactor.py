"""The reactor: turns, timers, handlers, and both drivers."""

from __future__ import annotations

import asyncio
import select
import socket
import threading

import pytest

from kubeproxy.dataplane.loop.reactor import FEW_EVENTS, LEVEL, LOOK_S, SHORT_WAITS, Reactor
from tests.support.clock import Clock
from tests.support.compiled_modules import of_sources


def test_timers_fire_in_order_and_not_when_cancelled() -> None:
    clock = Clock()
    reactor = Reactor(clock=clock)
    fired: list[str] = []
    reactor.after(2.0, lambda: fired.append("second"))
    reactor.after(1.0, lambda: fired.append("first"))
    cancelled = reactor.after(1.5, lambda: fired.append("never"))
    cancelled.cancel()
    reactor.turn()
    assert fired == []
    assert reactor.next_timer() == 101.0
    clock.now = 103.0
    reactor.turn()
    assert fired == ["first", "second"]
    assert reactor.next_timer() is None
    reactor.shut()


def test_a_closed_socket_gets_no_events_and_keeps_its_number_for_the_turn() -> None:
    reactor = Reactor()
    events: list[int] = []
    left, right = socket.socketpair()
    reactor.add(left.fileno(), events.append)
    right.send(b"x")
    number = left.fileno()

    def close_it() -> None:
        reactor.close(left.detach())
        new = socket.socket()
        assert new.fileno() != number
        new.close()

    reactor.again(close_it)
    reactor.turn()
    reactor.turn()
    events.clear()
    assert left.fileno() == -1
    right.close()
    reactor.turn()
    assert events == []
    reactor.shut()


def test_handing_over_needs_no_system_call_and_loses_nothing() -> None:
    reactor = Reactor()
    first: list[int] = []
    second: list[int] = []
    left, right = socket.socketpair()
    reactor.add(left.fileno(), first.append)
    reactor.turn()
    reactor.hand_over(left.fileno(), second.append)
    right.send(b"x")
    reactor.turn()
    assert second
    assert second[0] & select.EPOLLIN
    left.close()
    right.close()
    reactor.shut()


def test_run_drives_turns_without_another_loop() -> None:
    reactor = Reactor()
    thread = threading.Thread(target=reactor.run)
    reactor.after(0.05, reactor.stop)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    reactor.shut()


async def test_the_outer_loop_runs_beside_a_handler_with_unbounded_work() -> None:
    reactor = Reactor()
    reactor.attach(asyncio.get_running_loop())
    calls = 0

    def more() -> None:
        nonlocal calls
        calls += 1
        reactor.again(more)

    reactor.again(more)
    for _ in range(20):
        await asyncio.sleep(0)
    assert calls > 1
    reactor.shut()


async def test_timers_fire_in_an_outer_loop() -> None:
    reactor = Reactor()
    reactor.attach(asyncio.get_running_loop())
    fired = asyncio.Event()
    reactor.after(10.0, lambda: None).cancel()

    def again() -> None:
        reactor.after(0.05, fired.set)

    reactor.after(0.05, again)
    await asyncio.wait_for(fired.wait(), 20)
    reactor.shut()


def test_level_events_repeat_until_they_are_handled() -> None:
    reactor = Reactor()
    events: list[int] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reactor.add(listener.fileno(), events.append, LEVEL)
        with socket.create_connection(listener.getsockname()):
            reactor.turn(1.0)
            reactor.turn(1.0)
            assert len(events) == 2
            reactor.watch(listener.fileno(), 0)
            reactor.turn()
            assert len(events) == 2
        reactor.remove(listener.fileno())
        reactor.remove(listener.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        reactor.add(999_999, events.append)
    reactor.shut()


class Waits(Reactor):
    """A reactor with scripted turns: the wait before each, and its number of events."""

    def __init__(self, turns: list[tuple[float, int]]) -> None:
        self.time = Clock()
        super().__init__(clock=self.time)
        self.turns = turns
        self.looks: list[float] = []
        """Times of turns without a wait."""

    def turn(self, timeout_s: float = 0.0) -> int:
        wait_s, brought = self.turns[0]
        if timeout_s == 0.0 and self.looks[-1:] != [self.time.now]:
            self.looks.append(self.time.now)
        step_s = LOOK_S / 10 if timeout_s == 0.0 else wait_s
        self.time.now += min(step_s, wait_s)
        self.now = self.time.now
        if wait_s > step_s:
            self.turns[0] = (wait_s - step_s, brought)
            return 0
        del self.turns[0]
        if not self.turns:
            self.stop()
        return brought


def looks_in(turns: list[tuple[float, int]]) -> int:
    reactor = Waits(turns)
    reactor.run()
    reactor.shut()
    return len(reactor.looks)


@of_sources
def test_run_polls_for_a_lone_exchange_and_stops_when_it_pauses() -> None:
    short, long = (LOOK_S / 3, 1), (1.0, 1)
    assert looks_in([short] * SHORT_WAITS) == 0
    assert looks_in([short] * (SHORT_WAITS + 1)) > 0
    in_vain = looks_in([short] * SHORT_WAITS + [long])
    assert in_vain > 0
    assert looks_in([short] * SHORT_WAITS + [long] * 50) == in_vain


@of_sources
def test_run_does_not_poll_for_rare_or_many_events() -> None:
    short, long, crowd = (LOOK_S / 3, 1), (0.001, 1), (LOOK_S / 3, FEW_EVENTS + 1)
    assert looks_in([short, long] * 50) == 0
    assert looks_in([*[short] * (SHORT_WAITS - 1), long] * 50) == 0
    assert looks_in([crowd] * 100) == 0
