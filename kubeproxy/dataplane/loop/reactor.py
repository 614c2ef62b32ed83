"""The event loop that moves bytes, with its own epoll descriptor.

The asyncio loop is not used because a proxied connection has two sockets that live for milliseconds, and asyncio's
bookkeeping (`add_reader`, `remove_reader`, handles, an epoll_ctl(2) for each change of interest) costs more than moving
the bytes. Here a socket is registered once, edge-triggered for all events, and the kernel removes it when it is closed.
Handlers are looked up in a dict, so a socket can change its handler without a system call.

Rules for handlers:

- Because events are edge-triggered, a handler reads until the kernel has no more data (a short read tells as much), or
  records that it stopped. After EPOLLRDHUP it reads to the end; otherwise a FIN that came with data would be missed.
- Handlers accept spurious events, and never raise.
- Descriptors are closed with `close`, which removes the handler at once, but closes the descriptor only at the end of
  the turn. So an event of this turn never reaches a new socket with the same number.
- A handler with much work stops after a while, and continues in the next turn (`again`).

There are two ways to drive the reactor: `attach` runs turns from an asyncio loop (the epoll descriptor is itself
readable when there are events), and `run` needs no other loop.
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
"""All events of a stream socket. Each event is reported once, when it happens."""
LEVEL = select.EPOLLIN
"""The events of a listener. They are level-triggered: reported again as long as the queue is not empty."""

TURNS_PER_WAKE = 8
"""The largest number of turns for each wake-up by the asyncio loop. More turns save wake-ups under load; the limit
bounds how long the asyncio loop waits."""
EVENTS_PER_TURN = 256

LOOK_S = 100e-6
"""For how many seconds `run` polls for events before it sleeps, once `SHORT_WAITS` is reached. Sleeping and waking up
cost about as much. Polling shortens a single request and answer by a third, for about the same CPU time."""
SHORT_WAITS = 4
"""After this many waits in a row that were shorter than `LOOK_S`, `run` polls. So a peer that sends rarely costs
nothing, and a peer that stops sending costs one useless poll."""
FEW_EVENTS = 1
"""If a turn has more events than this, `run` does not poll afterwards. Events that arrive while the process sleeps are
handled together, which is cheaper."""


class Timer:
    """A scheduled call."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevent the call. This may be called repeatedly."""
        self.callback = None


class Reactor:
    """An epoll loop with timers (see the module). It is not thread-safe: everything runs in the thread that drives
    it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock()
        """The monotonic time at the start of the turn, in seconds. It is exact enough for decisions within the turn."""
        self.clock = clock
        self.turn_number = 0
        """The number of the present turn. The first turn has number 1."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._again: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self.at_end = self._at_end.append
        """Schedules a call at the end of this turn, after its events, timers and continued work."""
        self._every_end: list[Callable[[], None]] = []
        self._closing: list[int] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._ticket = count()
        self._driver: _AsyncioDriver | None = None
        self._running = False
        self._longest_turn_s = 0.0

    def add(self, fd: int, handler: Callable[[int], None], events: int = EDGE) -> None:
        """Watch a descriptor. Raise OSError if the kernel cannot watch any more descriptors."""
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def hand_over(self, fd: int, handler: Callable[[int], None]) -> None:
        """Replace the handler of a watched descriptor."""
        self._handlers[fd] = handler

    def watch(self, fd: int, events: int) -> None:
        """Change which events of a descriptor are watched; 0 means none."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor, without closing it."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        """Remove a descriptor's handler now, and close the descriptor at the end of this turn."""
        self._handlers.pop(fd, None)
        if not self._closing and self._driver is not None:
            self._driver.wake_soon()
        self._closing.append(fd)

    def again(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the start of the next turn, which begins without waiting."""
        self._again.append(callback)
        if self._driver is not None:
            self._driver.wake_soon()

    def at_every_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end of every turn, before descriptors are closed."""
        self._every_end.append(callback)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once after `delay_s` seconds."""
        timer = Timer(self.now + delay_s, callback)
        heapq.heappush(self._timers, (timer.when, next(self._ticket), timer))
        if self._driver is not None:
            self._driver.wake_at(timer.when)
        return timer

    def turn(self, timeout_s: float = 0.0) -> int:
        """Handle at most EVENTS_PER_TURN events; wait up to `timeout_s` seconds for the first one. Return how many
        events and callbacks of `again` were handled."""
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
        """Return the longest turn since the last call, in seconds."""
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
        """Return the monotonic time of the next timer, or None if there is none."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def run(self) -> None:
        """Run turns until `stop` is called, in a process without another loop."""
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
        """Make `run` return after the present turn."""
        self._running = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run turns whenever needed, from an asyncio loop."""
        self._driver = _AsyncioDriver(self, self._epoll.fileno(), loop)

    def shut(self) -> None:
        """Close the epoll descriptor, and all descriptors that are still to be closed."""
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
        """Run a turn soon, even without events."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._wake)

    def wake_at(self, when: float) -> None:
        """Run a turn at the latest at `when`, by the reactor's clock."""
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
