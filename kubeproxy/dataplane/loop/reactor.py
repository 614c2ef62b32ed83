"""The event loop that moves bytes, on an epoll of its own.

Why not asyncio's: a proxied connection is two sockets that live for milliseconds, and asyncio's bookkeeping
(`add_reader`, `remove_reader`, handles, an epoll_ctl(2) for each change of interest) costs more than the bytes. Here a
socket is registered once for its life, edge-triggered for all events, and the kernel removes it when it is closed; the
handler of an event is looked up in a dict, so a socket changes its handler without a system call.

Rules for handlers:

- Edge-triggered: a handler reads until the kernel has no more (a short read shows it, too) or records that it stopped.
  After an event with EPOLLRDHUP it reads to the end of the stream, or a FIN that came with data is never seen.
- Handlers accept spurious events, and never raise.
- Descriptors are closed through `close`: it removes the handler at once, but closes the descriptor only at the end of
  the turn, so that an event of this turn never reaches a new socket of the same number.
- A handler with unbounded work stops after a while and continues, by `again`, in the next turn.

The reactor has two drivers with the same turn: `attach` drives it from an asyncio loop (its epoll descriptor is itself
readable when it has events), `run` needs no other loop.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

EDGE = select.EPOLLIN | select.EPOLLPRI | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""All events of a stream socket. Each is reported once when it happens."""
LEVEL = select.EPOLLIN
"""The events of a listener, level-triggered: reported again as long as the queue is not empty."""

TURNS_PER_WAKE = 8
"""The largest number of turns for each wake-up by the outer loop. More turns save polls of the outer loop under load,
and the bound limits how long the outer loop waits."""
EVENTS_PER_TURN = 256

LOOK_S = 100e-6
"""How long `run` polls for events before it sleeps, once `SHORT_WAITS` is reached. This is about the cost of sleeping
and waking up. A lone request and its answer then take two thirds of the time, for about the same CPU time."""
SHORT_WAITS = 4
"""The number of waits in a row, each shorter than `LOOK_S`, after which `run` polls. So a peer that sends rarely costs
nothing, and a peer that stops sending costs one poll in vain."""
FEW_EVENTS = 1
"""The number of events in a turn above which `run` does not poll. Events that come while the process sleeps are handled
together, which is cheaper."""


class Timer:
    """A call scheduled for some time, unless it is cancelled."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevent the call. Repeating it is harmless."""
        self.callback = None


class Reactor:
    """An epoll loop with timers (see the module's docstring). It is not thread-safe: everything runs in the thread that
    drives it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock()
        """The monotonic time at the start of the turn, in seconds. It is exact enough for every decision within the
        turn."""
        self.clock = clock
        self.turn_number = 0
        """The number of the present turn, counted from 1."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._again: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self.at_end = self._at_end.append
        """Make one call after this turn's events, timers and continued work."""
        self._every_end: list[Callable[[], None]] = []
        self._closing: list[int] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._ticket = count()
        self._driver: _AsyncioDriver | None = None
        self._running = False
        self._longest_turn_s = 0.0

    def add(self, fd: int, handler: Callable[[int], None], events: int = EDGE) -> None:
        """Watch a descriptor. Raise OSError when the kernel has no room for another watch."""
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def hand_over(self, fd: int, handler: Callable[[int], None]) -> None:
        """Give the events of a watched descriptor to another handler."""
        self._handlers[fd] = handler

    def watch(self, fd: int, events: int) -> None:
        """Change the events that are watched for; 0 means none."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor, without closing it."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        """Remove a descriptor's handler now, and close it at the end of this turn."""
        self._handlers.pop(fd, None)
        if not self._closing and self._driver is not None:
            self._driver.wake_soon()
        self._closing.append(fd)

    def again(self, callback: Callable[[], None]) -> None:
        """Call at the start of the next turn, which follows without waiting."""
        self._again.append(callback)
        if self._driver is not None:
            self._driver.wake_soon()

    def at_every_end(self, callback: Callable[[], None]) -> None:
        """Call at the end of every turn, before descriptors are closed."""
        self._every_end.append(callback)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay_s` seconds."""
        timer = Timer(self.now + delay_s, callback)
        heapq.heappush(self._timers, (timer.when, next(self._ticket), timer))
        if self._driver is not None:
            self._driver.wake_at(timer.when)
        return timer

    def turn(self, timeout_s: float = 0.0) -> int:
        """Handle at most EVENTS_PER_TURN events; wait at most `timeout_s` for the first. Return how many were
        handled, including the callbacks of `again`."""
        if self._again:
            timeout_s = 0.0
        elif timeout_s and self._timers:
            timeout_s = max(0.0, min(timeout_s, self._timers[0][0] - self.clock()))
        try:
            events = self._epoll.poll(timeout_s, EVENTS_PER_TURN)
        except MemoryError:
            events = []
        self.now = self.clock()
        self.turn_number += 1
        handlers = self._handlers
        for fd, what in events:
            if fd in handlers:
                handlers[fd](what)
        done = len(events)
        if self._again:
            callbacks, self._again = self._again, []
            done += len(callbacks)
            for callback in callbacks:
                callback()
        if self._timers and self._timers[0][0] <= self.now:
            self._fire()
        if self._at_end:
            for callback in self._at_end:
                callback()
            self._at_end.clear()
        for callback in self._every_end:
            callback()
        if self._closing:
            for fd in self._closing:
                os.close(fd)
            self._closing.clear()
        if done and (turn_s := self.clock() - self.now) > self._longest_turn_s:
            self._longest_turn_s = turn_s
        return done

    def take_longest_turn(self) -> float:
        """Return and reset the longest turn, in seconds."""
        longest_s, self._longest_turn_s = self._longest_turn_s, 0.0
        return longest_s

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def next_timer(self) -> float | None:
        """Return the monotonic time of the next timer, or None without a timer."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def run(self) -> None:
        """Run turns until `stop`, in a process that does nothing else."""
        self._running = True
        short_waits = 0
        while self._running:
            began = self.clock()
            if short_waits < SHORT_WAITS:
                done = self.turn(60.0)
            else:
                until = began + LOOK_S
                while not (done := self.turn()) and self.now < until:
                    pass
            if 0 < done <= FEW_EVENTS and self.now - began < LOOK_S:
                short_waits += 1
            else:
                short_waits = 0

    def stop(self) -> None:
        """End `run` after the current turn."""
        self._running = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run turns from an asyncio loop."""
        self._driver = _AsyncioDriver(self, self._epoll.fileno(), loop)

    def shut(self) -> None:
        """Close the epoll descriptor and all descriptors still to be closed."""
        if self._driver is not None:
            self._driver.detach()
            self._driver = None
        for fd in self._closing:
            os.close(fd)
        self._closing.clear()
        self._handlers.clear()
        self._epoll.close()


class _AsyncioDriver:
    """Runs a reactor's turns in an asyncio loop."""

    def __init__(self, reactor: Reactor, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self._reactor = reactor
        self._fd = fd
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._soon: asyncio.Handle | None = None
        loop.add_reader(fd, self._wake)

    def detach(self) -> None:
        self._loop.remove_reader(self._fd)
        for handle in (self._handle, self._soon):
            if handle is not None:
                handle.cancel()

    def wake_soon(self) -> None:
        """Run a turn soon, even without an event."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._wake)

    def wake_at(self, when: float) -> None:
        """Run a turn at `when` (of the reactor's clock) at the latest."""
        if self._handle is not None:
            if self._due <= when:
                return
            self._handle.cancel()
        self._due = when
        self._handle = self._loop.call_later(max(0.0, when - time.monotonic()), self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        self._wake()
        if (when := self._reactor.next_timer()) is not None:
            self.wake_at(when)

    def _wake(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        turn = self._reactor.turn
        for _ in range(TURNS_PER_WAKE):
            if not turn():
                return
