"""UDP: sessions, one for each client address and port, each with a connected socket to its endpoint.

A frontend has one socket towards its clients. What it receives is first sorted into the sessions' queues and then sent
on in rounds, a few datagrams of each session at a time: a client that floods fills its own queue and nobody else's. An
answer leaves from the address that was asked (the packet information of the session's first datagram), or connection
tracking could not match it on a host with several addresses.

A session ends when it has been idle, when it is the idlest and another needs its place, or with its frontend. When its
endpoint refuses (ICMP) or leaves the Service, the session stays and moves to another endpoint with its next datagram.
"""

from __future__ import annotations

import random
import select
import socket
import struct
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Any

from kubeproxy.dataplane.balancer import Balancer
from kubeproxy.dataplane.context import Context, Tally
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.dataplane.reactor import LEVEL, Timer
from kubeproxy.dataplane.transparent import bind_as, can_preserve
from kubeproxy.model import Target

BATCH = 256
"""Datagrams taken from one socket in one helping."""
SHARE = 8
"""Datagrams of one session sent on before it is the next one's turn."""
STREAM_S = 0.001
"""Answers that follow one another within that time are a stream."""
QUEUE = 256
"""Datagrams that wait for one session; what comes beyond is dropped, as a router would."""
BUFFER_BYTES = 4 << 20
"""Socket buffers towards the clients, who share them: some 64 datagrams of the largest size."""
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
"""asm-generic/socket.h; Python has no names for them."""
SWEEPS_PER_TIMEOUT = 4

_PKTINFO4 = struct.Struct("=I4s4s")
_PKTINFO6 = struct.Struct("=16sI")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_PKTINFO6.size)

Key = tuple[Any, bytes]
"""A client's socket address, and which of our addresses it spoke to."""


class Sessions:
    """All sessions of a process, the idlest first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_idleness: OrderedDict[Session, None] = OrderedDict()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._by_idleness)

    def make_room(self) -> bool:
        """Claim a descriptor for one more; the idlest session goes if there is none. False if there is nothing to
        give up."""
        while len(self._by_idleness) >= self._context.tune.udp_sessions_max or not self._context.budget.take(1):
            if not self._by_idleness:
                return False
            idlest = next(iter(self._by_idleness))
            idlest.listener.tally.evicted += 1
            idlest.end()
        return True

    def add(self, session: Session) -> None:
        """One more, active now."""
        self._by_idleness[session] = None
        if self._timer is None:
            self._timer = self._context.reactor.after(self._sweep_s, self._sweep)

    def used(self, session: Session) -> None:
        """It is the least idle now."""
        session.last_used = self._context.reactor.now
        self._by_idleness.move_to_end(session)

    def remove(self, session: Session) -> None:
        """It has ended."""
        if session in self._by_idleness:
            del self._by_idleness[session]
            self._context.budget.give(1)

    @property
    def _sweep_s(self) -> float:
        return self._context.tune.udp_idle_s / SWEEPS_PER_TIMEOUT

    def _sweep(self) -> None:
        self._timer = None
        expired = self._context.reactor.now - self._context.tune.udp_idle_s
        while self._by_idleness and (idlest := next(iter(self._by_idleness))).last_used <= expired:
            idlest.end()
        if self._by_idleness:
            self._timer = self._context.reactor.after(self._sweep_s, self._sweep)


class Session:
    """One client and the endpoint that answers it."""

    __slots__ = ("_answered", "_avoid", "_key", "_queue", "_reply", "_socket", "_target", "last_used", "listener")

    def __init__(self, listener: DatagramListener, key: Key, reply: list[tuple[int, int, bytes]]) -> None:
        self.listener = listener
        self.last_used = listener.context.reactor.now
        self._answered = 0.0
        """When its endpoint sent last."""
        self._key = key
        self._reply = reply
        """Ancillary data that makes an answer leave from the address that was asked."""
        self._queue: deque[bytes] = deque()
        self._socket: socket.socket | None = None
        self._target: Target | None = None
        self._avoid: tuple[Target, ...] = ()
        """Who refused last."""

    def queue(self, datagram: bytes) -> bool:
        """From the client, to be sent on when it is this session's turn; whether it is the only one that waits."""
        if len(self._queue) >= QUEUE:
            self.listener.tally.dropped += 1
            return False
        self._queue.append(datagram)
        return len(self._queue) == 1

    def send_share(self) -> bool:
        """Send on a few; whether more wait."""
        for _ in range(min(SHARE, len(self._queue))):
            self._send(self._queue.popleft())
        return bool(self._queue)

    def _send(self, datagram: bytes) -> None:
        # A refusal of an earlier datagram is told when the next is sent, which then was not: once more, elsewhere.
        for _ in range(2):
            sock = self._socket or self._connect()
            if sock is None:
                break
            try:
                sock.send(datagram)
            except BlockingIOError:
                break
            except OSError:
                self._refused()
            else:
                self.listener.tally.bytes_in[0] += len(datagram)
                return
        self.listener.tally.dropped += 1

    def _connect(self) -> socket.socket | None:
        listener = self.listener
        client = self._key[0][0]
        balancer, now = listener.balancer, listener.context.reactor.now
        target = balancer.pick(client, now, self._avoid) or balancer.pick(client, now)
        if target is None:
            return None
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            return None
        try:
            if target in listener.preserve and can_preserve(client, target.address):
                bind_as(sock, client)
            sock.connect(target)
            listener.context.reactor.add(sock.fileno(), self._on_answer, select.EPOLLIN)
        except OSError:
            sock.close()
            self._avoid = (target,)
            return None
        self._socket, self._target = sock, target
        return sock

    def _on_answer(self, what: int) -> None:
        sock, listener = self._socket, self.listener
        if sock is None:
            return
        now = listener.context.reactor.now
        # A lone answer is not asked for a second one; what comes in a stream is taken by the share.
        share = SHARE if now - self._answered < STREAM_S else 1
        buffer, view = listener.context.buffer, listener.context.view
        answer, reply, client = listener.answer, self._reply, self._key[0]
        answered = False
        try:
            for _ in range(share):
                count = sock.recv_into(buffer)
                answered = True
                answer(view[:count], reply, client)
        except BlockingIOError:
            pass
        except MemoryError:
            listener.tally.dropped += 1
        except OSError:
            self._refused()
        if answered:
            self._answered = now
            if self._target is not None:
                listener.balancer.answered(self._target)
            listener.sessions.used(self)

    def _refused(self) -> None:
        if self._target is not None:
            self._avoid = (self._target,)
            self.listener.balancer.failed(self._target, self.listener.context.reactor.now, "refused")
            self.listener.tally.dial_retries += 1
        self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self.listener.context.reactor.close(self._socket.detach())
        self._socket = self._target = None

    def leave(self, endpoints: frozenset[Target]) -> None:
        """These are the endpoints from now on: if its own is not among them, the next datagram goes to another."""
        if self._target is not None and self._target not in endpoints:
            self._disconnect()

    def end(self) -> None:
        """No more of it."""
        self._disconnect()
        self._queue.clear()
        self.listener.forget(self._key)
        self.listener.sessions.remove(self)


class DatagramListener:
    """Serves one frontend on a socket that is bound already; does not own it."""

    def __init__(self, context: Context, sessions: Sessions, sock: socket.socket, *, rng: random.Random) -> None:
        self.context = context
        self.sessions = sessions
        self.balancer = Balancer(rng=rng)
        self.tally = Tally()
        self.preserve: frozenset[Target] = frozenset()
        self._sock = sock
        self._sessions: dict[Key, Session] = {}
        self._ring: deque[Session] = deque()
        """Those with datagrams to send on."""
        self._sending = False
        self._closed = False
        prepare(sock)
        context.reactor.add(sock.fileno(), self._on_datagrams, LEVEL)

    def set_endpoints(self, message: SetEndpoints) -> None:
        """The endpoints are these from now on; nobody stays with one that has left."""
        self.balancer.update(message.endpoints, message.affinity_timeout_s)
        self.preserve = message.preserve
        members = frozenset(message.endpoints)
        for session in self._sessions.values():
            session.leave(members)

    def _on_datagrams(self, what: int) -> None:
        recvmsg_into, buffer, view = self._sock.recvmsg_into, self.context.buffer, self.context.view
        sessions, used, ring = self._sessions, self.sessions.used, self._ring
        for _ in range(BATCH):
            try:
                count, ancillary, _, client = recvmsg_into((buffer,), _ANCILLARY_BYTES)
            except (BlockingIOError, MemoryError):
                break
            except OSError:
                # An ICMP error for an earlier answer: that client's business.
                continue
            key = (client, ancillary[0][2] if ancillary else b"")
            session = sessions.get(key)
            if session is None:
                session = self._welcome(key)
                if session is None:
                    self.tally.dropped += 1
                    continue
            else:
                used(session)
            if session.queue(bytes(view[:count])):
                ring.append(session)
        if ring and not self._sending:
            self._sending = True
            self.context.reactor.at_end(self._send_on)

    def _welcome(self, key: Key) -> Session | None:
        if not self.sessions.make_room():
            return None
        session = Session(self, key, _reply_from(key[1]))
        self._sessions[key] = session
        self.sessions.add(session)
        self.tally.accepted += 1
        self.tally.active += 1
        return session

    def _send_on(self) -> None:
        """One round: each session its share."""
        ring = self._ring
        for _ in range(len(ring)):
            session = ring.popleft()
            if session.send_share():
                ring.append(session)
        self._sending = bool(ring)
        if ring:
            self.context.reactor.again(self._send_on)

    def answer(self, datagram: memoryview, reply: list[tuple[int, int, bytes]], client: Any) -> None:
        """From an endpoint to a client. A client that is gone or a full buffer costs the datagram, as on any path."""
        if self._closed:
            return
        try:
            self.tally.bytes_out[0] += self._sock.sendmsg((datagram,), reply, 0, client)
        except OSError:
            self.tally.dropped += 1

    def forget(self, key: Key) -> None:
        """A session has ended."""
        if self._sessions.pop(key, None) is not None:
            self.tally.active -= 1

    def close(self) -> None:
        """Serve nobody any more; sessions end with their frontend, as the kernel's tracking of them does."""
        self._closed = True
        self.context.reactor.remove(self._sock.fileno())
        for session in list(self._sessions.values()):
            session.end()
        self._ring.clear()


def prepare(sock: socket.socket) -> None:
    """Set the options of a socket towards clients; again by the process that serves, which may be allowed less."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    for force, ask in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        if sock.getsockopt(socket.SOL_SOCKET, ask) >= BUFFER_BYTES:
            continue
        # Beyond net.core.{r,w}mem_max only with CAP_NET_ADMIN; as far as that allows, without.
        sock.setsockopt(socket.SOL_SOCKET, ask, BUFFER_BYTES)
        with suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)


def _reply_from(packet_information: bytes) -> list[tuple[int, int, bytes]]:
    """What makes an answer leave from the address that a datagram with this information came to. The interface is left
    to routing, which knows the way back."""
    if len(packet_information) == _PKTINFO4.size:
        _, _, address = _PKTINFO4.unpack(packet_information)
        return [(socket.IPPROTO_IP, IP_PKTINFO, _PKTINFO4.pack(0, address, bytes(4)))]
    if len(packet_information) == _PKTINFO6.size:
        address, _ = _PKTINFO6.unpack(packet_information)
        return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO6.pack(address, 0))]
    return []


IP_PKTINFO = 8
"""linux/in.h; Python 3.11 has no name for it."""
