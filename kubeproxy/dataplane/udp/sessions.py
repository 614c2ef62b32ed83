"""The UDP listener and its sessions: one session for each client address and port.

Each session has a socket connected to its endpoint. A frontend has one socket towards its clients. Received datagrams
are first put into the queues of their sessions. Then they are sent in rounds, a few datagrams of each session at a
time, so that a flooding client fills only its own queue.

An answer is sent from the local address that the client used (see `mmsg`). Otherwise connection tracking could not
match it on a host with several addresses. Answers are sent after requests, at the end of a turn, because a receiver
that is still awake from the last datagram need not be woken again.

A session ends when it has been idle for too long, when another session needs its place and it has been idle longest, or
with its frontend. If its endpoint refuses (ICMP) or no longer serves, the session's next datagram goes to another
endpoint.

A session can move to another process with its socket (`FrozenSession`). There the client's datagrams arrive at another
listener. Until the first one arrives, answers from the endpoint wait in the socket.
"""

from __future__ import annotations

import os
import random
import select
import socket
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.context import Context, FrontendCounters
from kubeproxy.dataplane.loop.reactor import LEVEL, Timer
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.dataplane.sockets.loop_prevention import hops_left, limit_hops, mark
from kubeproxy.dataplane.sockets.transparent_dial import bind_as, can_preserve
from kubeproxy.dataplane.sockets.udp_options import prepare
from kubeproxy.dataplane.udp.mmsg import SLOTS, Arrivals, Departures, host_of, is_peer, port_of, reply_to
from kubeproxy.dataplane.udp.state import SessionState
from kubeproxy.model import Target

BATCHES = 8
"""The number of batches received from one socket per readiness event."""
SHARE = 8
"""The number of datagrams of one session that are sent before it is another session's turn."""
STREAM_S = 0.001
"""The longest gap in seconds between two answers that count as a stream."""
QUEUE = 256
"""The largest number of datagrams queued for one session. Further ones are dropped, as by a router."""
SWEEPS_PER_TIMEOUT = 4
USED_S = 0.1
"""The resolution in seconds of a session's last use. Recording each datagram would cost too much."""


class Sessions:
    """All sessions of a process, by listener, those that have been idle longest first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._by_idleness: dict[DatagramListener, OrderedDict[Session, None]] = {}
        """The sessions of each listener, those idle longest first, except for listeners in `_disordered`. A listener
        without sessions has no entry."""
        self._disordered: set[DatagramListener] = set()
        """The listeners whose sessions are out of order, because some have moved here that were idle for longer than
        those before them."""
        self._timer: Timer | None = None
        self._buffers: dict[int, tuple[Arrivals, Departures]] = {}

    def buffers(self, family: int) -> tuple[Arrivals, Departures]:
        """Return the receive and send buffers for an address family, which all listeners share."""
        buffers = self._buffers.get(family)
        if buffers is None:
            buffers = self._buffers[family] = Arrivals(family), Departures(family)
            self._context.reactor.at_every_end(buffers[1].flush)
        return buffers

    def __len__(self) -> int:
        return self._count

    def all(self) -> Iterator[Session]:
        """Yield each session."""
        for sessions in tuple(self._by_idleness.values()):
            yield from tuple(sessions)

    def of(self, listener: DatagramListener) -> tuple[Session, ...]:
        """Return the sessions of a listener."""
        return tuple(self._by_idleness.get(listener, ()))

    def targets(self) -> Iterator[Target | None]:
        """Yield the endpoint of each session, or None for a session without one."""
        for session in self.all():
            yield session.target

    def make_room(self, listener: DatagramListener) -> bool:
        """Claim a descriptor for another session of a listener. Return False if none is available. If there is no room,
        a listener with at least an equal share of all sessions loses its own session that was idle longest. Otherwise
        the listener with the most sessions loses one. So a flood takes nothing away from others."""
        while self._count > self._context.tune.udp_sessions_max:  # The limit may have been lowered.
            self._evict(max(self._by_idleness.values(), key=len))
        if self._has_room(listener):
            return True
        own = self._by_idleness.get(listener)
        if own is None or len(own) * len(self._by_idleness) < self._count:
            largest = max(self._by_idleness.values(), key=len, default=own)
            if largest and largest is not own:
                self._evict(largest)
                if self._has_room(listener):
                    return True
        if own:
            self._evict(own)
            # Fairness is not checked, because the listener has just lost a session.
            self._context.budget.take_back(1, listener.counters.share)
            return True
        return False

    def _has_room(self, listener: DatagramListener) -> bool:
        return self._count < self._context.tune.udp_sessions_max and self._context.budget.take(
            1, listener.counters.share
        )

    def _evict(self, some: OrderedDict[Session, None]) -> None:
        idlest = self._idlest(some)
        idlest.listener.counters.evicted += 1
        self._context.touched.add(idlest.listener.counters)
        idlest.end()

    def _idlest(self, some: OrderedDict[Session, None]) -> Session:
        listener = next(iter(some)).listener
        if listener in self._disordered:
            self._disordered.remove(listener)
            for session in sorted(some, key=lambda session: session.last_used):
                some.move_to_end(session)
        return next(iter(some))

    def add(self, session: Session) -> None:
        """Add a session."""
        session.listener.counters.active += 1
        sessions = self._by_idleness.setdefault(session.listener, OrderedDict())
        if sessions and next(reversed(sessions)).last_used > session.last_used:
            self._disordered.add(session.listener)
        sessions[session] = None
        self._count += 1
        if self._timer is None:
            self._timer = self._context.reactor.after(self._sweep_s, self._sweep)

    def used(self, session: Session, now: float) -> None:
        """Record that a session has just been used. This is called at most once per `USED_S`."""
        session.last_used = now
        if session.asleep:
            session.wake()
        self._by_idleness[session.listener].move_to_end(session)

    def remove(self, session: Session) -> None:
        """Remove an ended session, and return its descriptor to the budget."""
        listener = session.listener
        sessions = self._by_idleness.get(listener)
        if sessions is not None and session in sessions:
            del sessions[session]
            if not sessions:
                del self._by_idleness[listener]
                self._disordered.discard(listener)
            self._count -= 1
            listener.counters.active -= 1
            self._context.budget.give(1, listener.counters.share)

    @property
    def _sweep_s(self) -> float:
        return self._context.tune.udp_idle_s / SWEEPS_PER_TIMEOUT

    def _sweep(self) -> None:
        self._timer = None
        expired = self._context.reactor.now - self._context.tune.udp_idle_s - USED_S
        for sessions in tuple(self._by_idleness.values()):
            while sessions and (idlest := self._idlest(sessions)).last_used <= expired:
                idlest.end()
        if self._by_idleness:
            self._timer = self._context.reactor.after(self._sweep_s, self._sweep)


class Session:
    """The datagrams between one client (address and port) and its endpoint."""

    __slots__ = (
        "_answered",
        "_avoid",
        "_hops",
        "_peer",
        "_reply",
        "_socket",
        "_target",
        "asleep",
        "hops",
        "last_used",
        "listener",
        "queue",
        "since",
    )

    def __init__(self, listener: DatagramListener, peer: bytes, hops: int) -> None:
        """`hops` is the hop limit left in the first datagram."""
        self.listener = listener
        self.hops = hops
        """The lowest hop limit left in any of its datagrams."""
        self._hops = hops_left(hops)
        self.since = self.last_used = listener.context.reactor.now
        self.asleep = False
        """Whether answers of the endpoint have to wait in the socket. This is so until the client sends something
        after the session has moved here, because connection tracking would not let an answer leave from the service
        address."""
        self.queue: deque[bytes] = deque()
        """The client's datagrams that wait for the session's turn."""
        self._answered = 0.0
        """When the endpoint last sent a datagram."""
        self._peer = peer
        """The client's address and the local address, as bytes (`mmsg`)."""
        self._reply = reply_to(peer, listener.family)
        self._socket: socket.socket | None = None
        self._target: Target | None = None
        self._avoid: tuple[Target, ...] = ()
        """The endpoint that refused last."""

    def send_share(self) -> bool:
        """Send at most `SHARE` datagrams. Return whether more are waiting."""
        queue = self.queue
        share = SHARE
        while queue and share:
            share -= 1
            datagram = queue.popleft()
            if self._socket is None:
                self._send(datagram)
                continue
            try:
                self.listener.counters.in_meter[0] += self._socket.send(datagram)
            except BlockingIOError:
                self.listener.counters.dropped += 1
            except OSError:
                # The error is about an earlier datagram. This one was not sent, so send it again.
                self._refused()
                self._send(datagram)
        return bool(queue)

    def _send(self, datagram: bytes) -> None:
        """Connect to an endpoint, and send the first datagram."""
        sock = self._connect()
        try:
            if sock is not None:
                self.listener.counters.in_meter[0] += sock.send(datagram)
                return
        except BlockingIOError:
            pass
        except OSError:
            self._refused()
        self.listener.counters.dropped += 1

    def _connect(self) -> socket.socket | None:
        listener = self.listener
        client, port = host_of(self._peer, listener.family), port_of(self._peer)
        balancer, now = listener.balancer, listener.context.reactor.now
        target = balancer.pick(client, now, self._avoid, port=port) or balancer.pick(client, now, port=port)
        if target is None:
            return None
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            return None
        try:
            mark(sock)
            limit_hops(sock, self._hops)
            if target in listener.preserve and can_preserve(client, target.address, listener.context.routes):
                bind_as(sock, client)
            sock.connect(target)
            listener.context.reactor.add(sock.fileno(), self._on_answer, select.EPOLLIN)
        except OSError:
            sock.close()
            self._avoid = (target,)
            return None
        self._socket, self._target = sock, target
        balancer.opened(target)
        return sock

    def _on_answer(self, what: int) -> None:
        sock, listener = self._socket, self.listener
        if sock is None:
            return
        now = listener.context.reactor.now
        # Receive a whole share of a stream, but only one datagram otherwise, because a single answer should cost a
        # single receive.
        share = SHARE if now - self._answered < STREAM_S else 1
        departures, reply = listener.departures, self._reply
        answered = False
        try:
            for _ in range(share):
                departures.add(sock.recv_into(departures.room(listener)), reply)
                answered = True
        except BlockingIOError:
            pass
        except MemoryError:
            listener.counters.dropped += 1
        except OSError:
            self._refused()
        if answered:
            self._answered = now
            if self._target is not None:
                listener.balancer.answered(self._target)
            if now - self.last_used >= USED_S:
                listener.sessions.used(self, now)

    def _refused(self) -> None:
        if self._target is not None:
            self._avoid = (self._target,)
            self.listener.balancer.failed(self._target, self.listener.context.reactor.now, "refused")
            self.listener.counters.dial_retries += 1
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self.listener.context.reactor.close(self._socket.detach())
        if self._target is not None:
            self.listener.balancer.closed(self._target)
        self._socket = self._target = None

    def tighten(self, hops: int) -> bool:
        """Lower the hop limit to that of a new datagram. Return False if the datagram must not be forwarded. Even an
        existing session needs this check: if a port is reused, sessions may form a ring, in which each datagram has to
        end."""
        left = hops_left(hops)
        if not left:
            return False
        self.hops, self._hops = hops, left
        if self._socket is not None:
            limit_hops(self._socket, left)
        return True

    def resume(self, sock: socket.socket, target: Target, avoid: tuple[Target, ...]) -> None:
        """Continue with the socket of a frozen session."""
        self._socket, self._target, self._avoid = sock, target, avoid
        self.listener.balancer.opened(target)

    @property
    def target(self) -> Target | None:
        """Return the endpoint, or None if there is none now."""
        return self._target

    def leave(self) -> None:
        """Disconnect if the endpoint no longer serves. The next datagram then goes to another endpoint."""
        if self._target is not None and self._target not in self.listener.keeping:
            self._disconnect()

    def wake(self) -> None:
        """From now on pass the endpoint's answers on."""
        self.asleep = False
        if self._socket is not None:
            try:
                self.listener.context.reactor.add(self._socket.fileno(), self._on_answer, select.EPOLLIN)
            except OSError:
                self._disconnect()

    def end(self) -> None:
        """End the session."""
        self._disconnect()
        self.queue.clear()
        self.listener.forget(self._peer, self)
        self.listener.sessions.remove(self)

    @property
    def client(self) -> str:
        """Return the client's address."""
        return host_of(self._peer, self.listener.family)

    def freeze(self) -> FrozenSession | None:
        """Send the queued datagrams, leave this process, and return what another process needs to continue. Return None
        if the session has ended or has no endpoint."""
        listener, context = self.listener, self.listener.context
        while self.send_share():
            pass
        sock, target, frontend = self._socket, self._target, listener.counters.frontend
        if sock is None or target is None or frontend is None:
            return None
        now = context.reactor.now
        state = SessionState(
            frontend, self._peer, self.hops, target, self._avoid, now - self.since, now - self.last_used
        )
        # Closing is not enough: the kernel keeps reporting events of a socket that another process also has.
        context.reactor.remove(sock.fileno())
        self._socket = None
        self.end()
        context.budget.take_back(1, listener.counters.share)
        return FrozenSession(listener, state, sock.detach(), asleep=self.asleep)


class FrozenSession:
    """A stopped session: its state, its socket's descriptor, and the claim for that."""

    __slots__ = ("_asleep", "_listener", "descriptors", "state")

    def __init__(self, listener: DatagramListener, state: SessionState, descriptor: int, *, asleep: bool) -> None:
        """The caller has claimed the descriptor. For a session of another process use `claim`."""
        self._listener = listener
        self._asleep = asleep
        self.state = state
        self.descriptors = (descriptor,)

    @classmethod
    def claim(cls, listener: DatagramListener, state: SessionState, descriptors: Sequence[int]) -> FrozenSession | None:
        """Claim the descriptor for a session of another process. Return None if there is no room, or if the session is
        invalid."""
        context = listener.context
        if (
            len(descriptors) != 1
            or not is_peer(state.peer, listener.family)
            or not context.budget.spare
            or len(listener.sessions) >= context.tune.udp_sessions_max
        ):
            return None
        context.budget.take_back(1, listener.counters.share)
        return cls(listener, state, descriptors[0], asleep=True)

    def thaw(self) -> Session:
        """Continue the session. If the client has two sessions, the older one serves the client, and the younger one
        only passes on answers until it has been idle for too long."""
        listener, state = self._listener, self.state
        now = listener.context.reactor.now
        session = Session(listener, state.peer, state.hops)
        session.since, session.last_used = now - state.age_s, now - max(USED_S, state.idle_s)
        session.resume(socket.socket(fileno=self.descriptors[0]), state.target, state.avoid)
        listener.sessions.add(session)
        known = listener.enter(state.peer, session)
        session.asleep = self._asleep and not known
        session.leave()
        if not session.asleep:
            session.wake()
        return session

    def close(self) -> None:
        """Close the socket and return the claim, without affecting the session in the other process."""
        os.close(self.descriptors[0])
        self._listener.context.budget.give(1, self._listener.counters.share)


class DatagramListener:
    """Serves a frontend's clients on a bound UDP socket, which the listener does not own."""

    def __init__(self, context: Context, sessions: Sessions, sock: socket.socket, *, rng: random.Random) -> None:
        self.context = context
        self.sessions = sessions
        self.balancer = Balancer(rng=rng, shared=context.shared_rows, failing=context.failing)
        self.counters = FrontendCounters()
        self.preserve: frozenset[Target] = frozenset()
        self.keeping: frozenset[Target] = frozenset()
        """The endpoints whose existing sessions continue, even if they get no new ones."""
        self.family = sock.family
        self.arrivals, self.departures = sessions.buffers(sock.family)
        self._sock = sock
        self._sessions: dict[bytes, Session] = {}
        """The sessions by peer."""
        self._ring: deque[Session] = deque()
        """The sessions with queued datagrams."""
        self._sending = False
        prepare(sock)
        context.reactor.add(sock.fileno(), self._on_datagrams, LEVEL)

    def set_endpoints(self, message: SetEndpoints) -> None:
        """Replace the endpoints. Sessions whose endpoint no longer serves get another one."""
        self.balancer.update(message.endpoints, message.affinity_timeout_s, message.balancing)
        self.balancer.share(message.endpoints, message.columns)
        self.preserve = message.preserve
        self.keeping = frozenset(message.endpoints + message.staying)
        for session in self.sessions.of(self):
            session.leave()

    def _on_datagrams(self, what: int) -> None:
        fd, now = self._sock.fileno(), self.context.reactor.now
        sessions, ring = self._sessions, self._ring
        for _ in range(BATCHES):
            try:
                arrived = self.arrivals.receive(fd)
            except MemoryError:
                break
            except OSError:
                # An ICMP error about an earlier answer, which concerns only one client.
                continue
            for (peer, datagram), hops in zip(arrived, self.arrivals.hops, strict=False):
                session = sessions.get(peer)
                if session is None:
                    session = self._open_session(peer, hops)
                    if session is None:
                        continue
                elif hops < session.hops and not session.tighten(hops):
                    self._refuse_loop()
                    continue
                if now - session.last_used >= USED_S:
                    self.sessions.used(session, now)
                queue = session.queue
                if not queue:
                    ring.append(session)
                elif len(queue) >= QUEUE:
                    self.counters.dropped += 1
                    continue
                queue.append(datagram)
            if len(arrived) < SLOTS:
                break
        if ring and not self._sending:
            self._sending = True
            self.context.reactor.at_end(self._send_on)

    def _open_session(self, peer: bytes, hops: int) -> Session | None:
        """Return a new session for a client. Return None if the client gets no session, so that its datagram is
        dropped."""
        if not hops_left(hops):
            self._refuse_loop()
            return None
        if not self.sessions.make_room(self):
            self.counters.dropped += 1
            self.context.touched.add(self.counters)
            return None
        session = Session(self, peer, hops)
        self._sessions[peer] = session
        self.sessions.add(session)
        self.counters.accepted += 1
        self.context.touched.add(self.counters)
        return session

    def _refuse_loop(self) -> None:
        """Count a datagram that has passed through too many proxies."""
        self.counters.looped += 1
        self.context.looped += 1
        self.context.touched.add(self.counters)

    def _send_on(self) -> None:
        """Send a share of each session's datagrams (one round)."""
        ring = self._ring
        for _ in range(len(ring)):
            session = ring.popleft()
            if session.send_share():
                ring.append(session)
        self._sending = bool(ring)
        if ring:
            self.context.reactor.again(self._send_on)

    def fileno(self) -> int:
        """Return the descriptor of the socket towards clients."""
        return self._sock.fileno()

    def sent(self, byte_count: int, dropped: int) -> None:
        """Count the bytes of answers, and the answers that were dropped."""
        self.counters.out_meter[0] += byte_count
        self.counters.dropped += dropped

    def enter(self, peer: bytes, session: Session) -> bool:
        """Let a session that has moved here serve its client, unless an older session does. Return whether another
        session serves, or has served, this client."""
        present = self._sessions.get(peer)
        if present is None or session.since < present.since:
            self._sessions[peer] = session
        self.context.touched.add(self.counters)
        return present is not None

    def forget(self, peer: bytes, session: Session) -> None:
        """Remove an ended session."""
        if self._sessions.get(peer) is session:
            del self._sessions[peer]

    def close(self) -> None:
        """Stop serving, and end all sessions."""
        self.departures.forget(self)
        self.context.reactor.remove(self._sock.fileno())
        for session in self.sessions.of(self):
            session.end()
        self._ring.clear()
