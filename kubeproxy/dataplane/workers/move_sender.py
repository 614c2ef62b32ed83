"""Moves the connections of this worker to the workers of another instance, through channels to these workers.

From then on everything leaves this worker as soon as it can: connections at once, and dials when an endpoint has
answered. If the other instance does not accept a connection, because it has no room or has ended, this worker serves
the connection to its end.
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
"""How often, in seconds, the worker looks for connections that can leave now."""
ANSWER_S = 5.0
"""For how many seconds a receiver may not answer. After that it counts as hanging: its channel is closed, and this
worker continues the connections of the load."""
DESCRIPTORS_MAX = 6
"""The largest number of descriptors of a connection: two sockets, and a pipe (two descriptors) for each direction."""
FIRST_S = 1.0
"""How many seconds to reserve connections for a receiver that has not reported its room yet."""
FULL_S = 1.0
"""How often, in seconds, a receiver without room is asked again."""
REFUSED_S = 5.0
"""How many seconds pass until a refused connection is offered again."""


class Way:
    """A channel to one worker of the other instance, with the load in transit."""

    def __init__(self, reactor: Reactor, sock: socket.socket, number: int, on_free: Callable[[], None]) -> None:
        """`number` is the number of the other worker. `on_free` is called when a load has been accepted or returned."""
        self.number = number
        self.room = 0
        self.alive = True
        self.given = 0
        """How many connections were moved."""
        self.moved = 0
        self.longest_s = 0.0
        """The longest time in seconds for which a connection was stopped: from the beginning of a load to its
        receipt."""
        self.returned: list[Movable] = []
        """The connections that the receiver has refused and this worker serves again. The reader clears the list."""
        self.asked_at = reactor.now
        """When something was last sent to the receiver, whose answer includes its room."""
        self._reactor = reactor
        self._channel: Channel[Receipt] = Channel(sock, Receipt)
        self._on_free = on_free
        self._sent = 0
        """The number of the last load."""
        self._load: list[Frozen] = []
        self._began = 0.0
        self._waits = True
        """Whether a receipt is expected. The first one only reports the receiver's room."""
        self._watched = LEVEL
        reactor.add(sock.fileno(), self._on_event, LEVEL)
        self._expect()

    @property
    def free(self) -> bool:
        """Return whether another load may be sent now."""
        return self.alive and not self._waits

    @property
    def full(self) -> bool:
        """Return whether the receiver has no room for a connection, or has not reported its room for long."""
        if self._waits and not self._sent:
            return self._reactor.now >= self.asked_at + FIRST_S
        return self.free and self.room < DESCRIPTORS_MAX

    @property
    def under_way(self) -> int:
        """Return how many connections are stopped because their load has no receipt yet."""
        return len(self._load)

    def send(self, load: list[Frozen], began: float) -> None:
        """Send a load that was begun at time `began`. An empty load asks for the receiver's room."""
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
            # There is no memory, or too many descriptors of this user are in transit. Nothing was sent.
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
                # From now on the receiver cannot send a receipt. One that it has already sent can still be read.
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
            self._reactor.after(LOOK_S, lambda: self._on_event(LEVEL))  # A receipt may still be in the channel.
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
        """Take back the load without a receipt, because this process ends and its connections have to be reset."""
        if not self.alive or not self._waits:
            return
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RD)
        self._on_event(LEVEL)  # Read a receipt that has already been sent.
        self._on_event(LEVEL)  # Read the end of the channel.

    def _take_back(self, places: Collection[int]) -> list[Movable]:
        """Continue the connections at these positions of the load in this process, and return them."""
        load, self._load = self._load, []
        return [live for at, frozen in enumerate(load) if at in places and (live := frozen.thaw()) is not None]

    def _lose(self) -> None:
        """Close the channel, and continue the load without a receipt in this process."""
        self.alive = False
        self._reactor.remove(self._channel.sock.fileno())
        with contextlib.suppress(OSError):
            self._channel.sock.shutdown(socket.SHUT_RD)
        self._withdraw()

    def _withdraw(self) -> None:
        """Leave a byte after the load. It tells a receiver that reads the load late that this process is alive and has
        taken the load back."""
        try:
            if self._load and not self._channel.congested:  # An incomplete load in the channel cannot be used anyway.
                self._channel.sock.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self._reactor.after(LOOK_S, self._withdraw)
            return
        except OSError:
            pass  # The receiver has closed, and will not read the load.
        self._channel.close()
        self._take_back(range(len(self._load)))  # They may be sent to another receiver.
        self._on_free()


class Mover:
    """Moves everything that the engine serves, as long as the process lives."""

    def __init__(self, reactor: Reactor, engine: Engine, on_idle: Callable[[int, int, float], None]) -> None:
        """`on_idle` is called when nothing more can leave for now, with the number of moved connections, the number of
        remaining ones, and the longest time in seconds for which a connection was stopped."""
        self._reactor = reactor
        self._engine = engine
        self._on_idle = on_idle
        self._ways: list[Way] = []
        self._candidates: dict[int | None, deque[Movable]] = {}
        """The connections that can leave, by the number of the worker that has to continue them. None means that any
        worker may."""
        self._count = 1
        """The number of workers of the other instance, among which UDP clients are distributed."""
        self._refused: dict[Movable, float] = {}
        """The refused connections, each with the time of the refusal."""
        self._moved = 0
        self._longest_s = 0.0
        self._idle = False
        self._scheduled = False

    @property
    def under_way(self) -> int:
        """Return how many connections are in transit. If they are refused, they continue here."""
        return sum(way.under_way for way in self._ways)

    def add(self, channels: Sequence[tuple[int, socket.socket]], count: int) -> None:
        """Also move connections to these workers, each given as its number and its channel. `count` is the number of
        all workers of the other instance."""
        self._count = count
        added = [Way(self._reactor, sock, number, self._again) for number, sock in channels]
        # The order is random, so that several old workers with few connections do not all send them to the same new
        # worker.
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
            # The remaining candidates are for other workers. Search again, because this worker may be able to take
            # connections that have begun since.
            self._candidates.clear()
        self._again()

    def _step(self) -> None:
        """Send a load to each worker that is ready for one."""
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
        """Find connections that can leave."""
        numbers = {None, *(way.number for way in self._ways)}
        self._candidates.clear()
        for each in self._engine.movable():
            if self._refused.get(each, -math.inf) > self._reactor.now - REFUSED_S:
                continue
            number = None if each.client is None else place(each.client, count=self._count)
            if number in numbers:
                self._candidates.setdefault(number, deque()).append(each)

    def _forget_refused(self) -> None:
        """Forget refusals of connections that have ended or may be offered again."""
        movable, since = set(self._engine.movable()), self._reactor.now - REFUSED_S
        self._refused = {each: at for each, at in self._refused.items() if at > since and each in movable}

    def stop(self) -> None:
        """Take back the loads in transit, because this process ends."""
        for way in self._ways:
            way.stop()

    def _for(self, way: Way) -> deque[Movable] | None:
        """Return the candidates for this worker, or None if there are none."""
        return self._candidates.get(way.number) or self._candidates.get(None)

    def _part(self, way: Way, count: int) -> int:
        """Return how many of the `count` connections that any worker may continue go to this worker, so that all get
        equal numbers."""
        ways = [each for each in self._ways if each is way or not each.full]
        return -(-(sum(each.given for each in ways) + count) // len(ways)) - way.given

    def _send(self, way: Way) -> bool:
        """Send a load. Return whether there was anything to send."""
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
