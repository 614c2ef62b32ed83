"""Hands the connections of this worker to the workers of another instance, through the channels that it was given.

From then on everything that this worker serves leaves as soon as it can: a connection at once, and a dial when an
endpoint has answered. If the other instance does not take a connection, because it has no room or has ended, this
worker serves that connection to its end.
"""

from __future__ import annotations

import contextlib
import errno
import math
import random
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence

from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.movable import Frozen, Movable
from kubeproxy.dataplane.sockets.reuseport_program import place
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.move_protocol import LOAD_BYTES, LOAD_DESCRIPTORS, Load, Receipt
from kubeproxy.dataplane.workers.protocol import GarbledError

LOOK_S = 0.05
"""How often the worker looks for connections that can leave by now."""
ANSWER_S = 5.0
"""For how long a receiver may not answer. After that it counts as hung: its channel is given up, and the load stays
here."""
DESCRIPTORS_MAX = 6
"""The most descriptors that a connection has: two sockets, and a pipe for each direction."""
FIRST_S = 1.0
"""For how long connections are kept for a receiver that has not reported its room so far."""
FULL_S = 1.0
"""How often a receiver without room is asked again."""
REFUSED_S = 5.0
"""How long a connection that a receiver has refused stays before it is tried again."""


class Way:
    """The channel to one worker of the other instance, and the load that is on the way."""

    def __init__(self, reactor: Reactor, sock: socket.socket, number: int, on_free: Callable[[], None]) -> None:
        """`number` is that of the other worker. `on_free` is called when a load has been taken, or has come back."""
        self.number = number
        self.room = 0
        self.alive = True
        self.given = 0
        """How many connections were sent."""
        self.moved = 0
        self.longest_s = 0.0
        """For how long a load was on the way at most, from before its first connection was stopped until its
        receipt."""
        self.returned: list[Movable] = []
        """What the receiver has refused and this worker serves again. The reader clears it."""
        self.asked_at = reactor.now
        """When the receiver was last sent something, which also asks for its room."""
        self._reactor = reactor
        self._channel: Channel[Receipt] = Channel(sock, Receipt)
        self._on_free = on_free
        self._sent = 0
        """The number of the last load."""
        self._load: list[Frozen] = []
        self._began = 0.0
        self._waits = True
        """Whether a receipt is awaited. The first one reports the room of the receiver."""
        self._watched = LEVEL
        reactor.add(sock.fileno(), self._on_event, LEVEL)
        self._expect()

    @property
    def free(self) -> bool:
        """Return whether the next load may be sent."""
        return self.alive and not self._waits

    @property
    def full(self) -> bool:
        """Return whether the receiver has no room for a connection, or takes long to report its room at all."""
        if self._waits and not self._sent:
            return self._reactor.now >= self.asked_at + FIRST_S
        return self.free and self.room < DESCRIPTORS_MAX

    @property
    def under_way(self) -> int:
        """Return how many connections are stopped, because they have no receipt so far."""
        return len(self._load)

    def send(self, load: list[Frozen], began: float) -> None:
        """Send a load, which was begun at `began`. A load without connections asks for the room."""
        self._sent += 1
        self.given += len(load)
        self._began, self.asked_at = began, self._reactor.now
        self._waits, self._load = True, load
        descriptors = [descriptor for each in load for descriptor in each.descriptors]
        try:
            self._channel.send(Load(self._sent, tuple(each.state for each in load)), descriptors)
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno != errno.ETOOMANYREFS:
                self._lose()
                return
            # There is no memory, or too many descriptors of this user's processes are in flight. Nothing was sent.
            self._waits, self.room, self._load = False, 0, []
            for each in load:
                each.thaw()
            return
        self._watch()
        self._expect()

    def _expect(self) -> None:
        number = self._sent

        def look() -> None:
            if self.alive and self._waits and self._sent == number:
                # The receiver cannot send a receipt from now on. A receipt that it has sent is still read.
                self._channel.sock.shutdown(socket.SHUT_RD)

        self._reactor.after(ANSWER_S, look)

    def _watch(self) -> None:
        events = LEVEL | (select.EPOLLOUT if self._channel.congested else 0)
        if events != self._watched:
            self._watched = events
            self._reactor.watch(self._channel.sock.fileno(), events)

    def _on_event(self, what: int) -> None:
        if not self.alive:
            return
        try:
            if what & select.EPOLLOUT:
                self._channel.flush()
                self._watch()
            if what & ~select.EPOLLOUT:
                for receipt, _ in self._channel.receive():
                    self._take(receipt)
        except MemoryError:
            self._reactor.after(LOOK_S, lambda: self._on_event(LEVEL))  # The receipt is still in the channel.
        except (GarbledError, EOFError, OSError):
            self._lose()

    def _take(self, receipt: Receipt) -> None:
        if not self._waits or receipt.number != self._sent:
            raise GarbledError(f"a receipt for load {receipt.number} instead of {self._sent}")
        self._waits, self.room = False, receipt.room
        refused = set(receipt.refused)
        if self._load:
            self.longest_s = max(self.longest_s, self._reactor.clock() - self._began)
        for at, frozen in enumerate(self._load):
            if at not in refused:
                frozen.close()
                self.moved += 1
        self.returned += self._take_back(refused)
        self._on_free()

    def stop(self) -> None:
        """Take back a load without a receipt, because this process ends: its connections are to be reset."""
        if not self.alive or not self._waits:
            return
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RD)
        self._on_event(LEVEL)  # a receipt that has been sent
        self._on_event(LEVEL)  # the end

    def _take_back(self, places: Collection[int]) -> list[Movable]:
        """Continue the connections at these places of the load in this process, and return them."""
        load, self._load = self._load, []
        return [live for at, frozen in enumerate(load) if at in places and (live := frozen.thaw()) is not None]

    def _lose(self) -> None:
        """Give the channel up, and continue the load that has no receipt in this process."""
        self.alive = False
        self._reactor.remove(self._channel.sock.fileno())
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RD)
        self._withdraw()

    def _withdraw(self) -> None:
        """Leave a byte after the load, so that a receiver that comes late does not take this process for dead."""
        try:
            if self._load and not self._channel.congested:  # Otherwise the load in the channel is not complete.
                self._channel.sock.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self._reactor.after(LOOK_S, self._withdraw)
            return
        except OSError:
            pass  # The receiver has closed, and will not come.
        self._channel.close()
        self._take_back(range(len(self._load)))  # Another receiver may take them.
        self._on_free()


class Mover:
    """Moves everything that the engine serves, until the process ends."""

    def __init__(self, reactor: Reactor, engine: Engine, on_idle: Callable[[int, int, float], None]) -> None:
        """`on_idle` is called whenever nothing more can leave at the moment. It gets how many connections have moved,
        how many are left, and for how many seconds a connection was stopped at most."""
        self._reactor = reactor
        self._engine = engine
        self._on_idle = on_idle
        self._ways: list[Way] = []
        self._candidates: dict[int | None, deque[Movable]] = {}
        """What can leave, by the number of the worker that is to continue. With None any worker may."""
        self._count = 1
        """The number of workers of the other instance, among which UDP clients are divided."""
        self._refused: dict[Movable, float] = {}
        """What a receiver has refused, and when."""
        self._moved = 0
        self._longest_s = 0.0
        self._idle = False
        self._scheduled = False

    @property
    def under_way(self) -> int:
        """Return how many connections are on the way. Those that are refused continue here."""
        return sum(way.under_way for way in self._ways)

    def add(self, channels: Sequence[tuple[int, socket.socket]], count: int) -> None:
        """Move to these workers, too. Each has its number, of `count` in all."""
        self._count = count
        added = [Way(self._reactor, sock, number, self._again) for number, sock in channels]
        # Old workers with few connections must not all give them to the same new worker.
        self._ways += random.sample(added, len(added))
        self._idle = False
        self._look()

    def _again(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._reactor.again(self._step)

    def _look(self) -> None:
        if self._ways:
            self._reactor.after(LOOK_S, self._look)
        if any(way.free and not self._for(way) for way in self._ways):
            # What is left is for other workers, and must not keep this one from what has begun since.
            self._candidates.clear()
        self._again()

    def _step(self) -> None:
        """Send a load on each way that is free."""
        self._scheduled = False
        for way in self._ways:
            self._refused.update(dict.fromkeys(way.returned, self._reactor.now))
            way.returned.clear()
            self._moved += way.moved
            way.moved = 0
            self._longest_s = max(self._longest_s, way.longest_s)
        self._ways = [way for way in self._ways if way.alive or way.under_way]
        if not any(self._candidates.values()):
            self._find()
        for way in self._ways:
            if way.free and self._send(way):
                self._idle = False
        if not self._idle and all(way.free for way in self._ways):
            self._idle = True
            self._forget_refused()
            self._on_idle(self._moved, self._engine.open, self._longest_s)

    def _find(self) -> None:
        """Find what can leave to one of the workers."""
        numbers = {None, *(way.number for way in self._ways)}
        self._candidates.clear()
        for each in self._engine.movable():
            if self._refused.get(each, -math.inf) > self._reactor.now - REFUSED_S:
                continue
            number = None if each.client is None else place(each.client, count=self._count)
            if number in numbers:
                self._candidates.setdefault(number, deque()).append(each)

    def _forget_refused(self) -> None:
        """Forget refusals of connections that have ended, or that are old enough for another try."""
        movable, since = set(self._engine.movable()), self._reactor.now - REFUSED_S
        self._refused = {each: at for each, at in self._refused.items() if at > since and each in movable}

    def stop(self) -> None:
        """Take back what is under way, because this process ends."""
        for way in self._ways:
            way.stop()

    def _for(self, way: Way) -> deque[Movable] | None:
        """Return what can leave to this worker."""
        return self._candidates.get(way.number) or self._candidates.get(None)

    def _part(self, way: Way, count: int) -> int:
        """Return how many of the connections that any worker may have go this way, so that all get as many."""
        ways = [each for each in self._ways if each is way or not each.full]
        return -(-(sum(each.given for each in ways) + count) // len(ways)) - way.given

    def _send(self, way: Way) -> bool:
        """Send a load, and return whether there was anything to send."""
        candidates = self._for(way)
        if not candidates:
            return False
        load: list[Frozen] = []
        descriptors, size, began = 0, 0, self._reactor.clock()
        limit = min(LOAD_DESCRIPTORS, way.room)
        most = len(candidates) if candidates is self._candidates.get(way.number) else self._part(way, len(candidates))
        while candidates and len(load) < most and descriptors + DESCRIPTORS_MAX <= limit and size < LOAD_BYTES:
            frozen = candidates.popleft().freeze()
            if frozen is not None:
                load.append(frozen)
                descriptors += len(frozen.descriptors)
                size += frozen.state.size
        if not load and self._reactor.now < way.asked_at + FULL_S:
            return False
        way.send(load, began)
        return bool(load)
