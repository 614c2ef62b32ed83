"""Finding an endpoint that answers, for one accepted client. Never inside accept; no client waits for another.

The ladder (`Tune.dial_steps_s`) gives each attempt its time. When a step ends without an answer the next endpoint is
tried *beside* the one that is silent, and the first to answer wins: a slow network is not a dead endpoint. An endpoint
that refuses makes room for the next one at once. When all were tried in this step, the dial waits for the next step and
begins again, so that an endpoint that is just being restarted is waited for. When the last step ends, or there is
nobody to dial, the client is reset.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from functools import partial

from kubeproxy.dataplane.balancer import Balancer
from kubeproxy.dataplane.context import Context, Tally
from kubeproxy.dataplane.fds import reset_on_close
from kubeproxy.dataplane.splice import Connection
from kubeproxy.dataplane.transparent import bind_as, can_preserve
from kubeproxy.model import Target

ATTEMPTS_PER_STEP = 8
"""So that one client of a service whose thousand endpoints all refuse does not cost a thousand connects."""

EPHEMERAL_PORTS_FROM = 32_768
"""net.ipv4.ip_local_port_range begins here by default; lower it and lower ports are concerned too."""
UNDER_WAY = (0, errno.EINPROGRESS)
UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
"""What speaks against the endpoint; other errors (no port, no memory) are this host's own."""
HUNG_UP = select.EPOLLERR | select.EPOLLHUP
"""An endpoint that refused, or a client that reset. (A client that only said FIN may still want its answer.)"""


class Dial:
    """A client that has no endpoint yet. Owns the client's socket, those that are waiting for an answer, and the claim
    on their descriptors: two came with the client (its own, and one to dial with), each further one is claimed here."""

    __slots__ = (
        "_attempts",
        "_balancer",
        "_client",
        "_client_address",
        "_client_events",
        "_context",
        "_preserve",
        "_step",
        "_tally",
        "_tried",
        "_waiting",
        "since",
    )

    def __init__(
        self,
        context: Context,
        tally: Tally,
        balancer: Balancer,
        *,
        client: int,
        client_address: str,
        preserve: frozenset[Target],
    ) -> None:
        self.since = context.reactor.now
        self._context = context
        self._tally = tally
        self._balancer = balancer
        self._client = client
        self._client_address = client_address
        self._preserve = preserve
        self._client_events = 0
        self._waiting: dict[int, Target] = {}
        self._tried: list[Target] = []
        self._step = 0
        self._attempts = 0

    def start(self) -> None:
        """Begin with the first step of the ladder."""
        reactor = self._context.reactor
        self._context.live.add(self)
        try:
            reactor.add(self._client, self._on_client)
        except OSError:
            self._fail()
            return
        self._context.ladder.step(self, self._context.tune.dial_steps_s[0])
        # Like all that wakes somebody: at the end of the turn, when the whole batch has been accepted.
        reactor.at_end(self._attempt)

    def abort(self) -> None:
        """End it now; the client sees a reset."""
        self._end()

    def _attempt(self) -> None:
        """Dial the next endpoints of this step, until one has not refused at once."""
        if self not in self._context.live:
            return
        while self._attempts < ATTEMPTS_PER_STEP:
            target = self._balancer.pick(self._client_address, self._context.reactor.now, self._tried)
            if target is None:
                break
            self._attempts += 1
            self._tried.append(target)
            if self._connect(target):
                return
            self._tally.dial_retries += 1
        if not self._waiting and not len(self._balancer):
            self._fail()

    def _connect(self, target: Target) -> bool:
        """Whether a connection to this endpoint is under way."""
        context = self._context
        if self._waiting and not context.budget.take(1):
            return False
        try:
            fd = begin_connecting(target, keepalive_s=context.tune.keepalive_s, client=self._speak_as(target))
        except OSError as error:
            if error.errno in UNREACHABLE:
                reason = "refused" if error.errno == errno.ECONNREFUSED else "unreachable"
                self._balancer.failed(target, context.reactor.now, reason)
            if self._waiting:
                context.budget.give(1)
            return False
        self._waiting[fd] = target
        try:
            context.reactor.add(fd, partial(self._on_endpoint, fd))
        except OSError:
            self._drop(fd)
            return False
        return True

    def _speak_as(self, target: Target) -> str | None:
        """Whose address the endpoint is to see; None: this node's."""
        client = self._client_address
        return client if target in self._preserve and can_preserve(client, target.address) else None

    def _drop(self, fd: int) -> None:
        del self._waiting[fd]
        self._context.reactor.close(fd)
        if self._waiting:
            self._context.budget.give(1)

    def _on_endpoint(self, fd: int, what: int) -> None:
        target = self._waiting[fd]
        if what & HUNG_UP or (target.port >= EPHEMERAL_PORTS_FROM and _is_own_echo(fd)):
            self._drop(fd)
            self._balancer.failed(target, self._context.reactor.now, "refused")
            self._tally.dial_retries += 1
            self._attempt()
            return
        if len(self._waiting) > 1:
            for loser in [other for other in self._waiting if other != fd]:
                self._drop(loser)
        self._waiting.clear()
        self._context.live.discard(self)
        self._context.dial_times.add(self._context.reactor.now - self.since)
        self._balancer.answered(target)
        self._balancer.settle(self._client_address, target, self._context.reactor.now)
        Connection(
            self._context,
            self._tally,
            client=self._client,
            endpoint=fd,
            client_events=self._client_events,
            endpoint_events=what,
            since=self.since,
        )

    def _on_client(self, what: int) -> None:
        if what & HUNG_UP:
            self._end()
        else:
            self._client_events |= what

    def on_step_over(self) -> None:
        """The present step is over: on to the next one, unless there is an endpoint (or no client) by now."""
        if self not in self._context.live:
            return
        tune, now = self._context.tune, self._context.reactor.now
        for silent in set(self._waiting.values()):
            self._balancer.failed(silent, now, "timeout")
        self._step += 1
        if self._step >= len(tune.dial_steps_s):
            self._fail()
            return
        self._context.ladder.step(self, tune.dial_steps_s[self._step])
        self._attempts = 0
        if len(self._tried) >= len(self._balancer):
            # All had their turn: once more, those that are silent last.
            self._tried = list(self._waiting.values())
            if len(self._tried) >= len(self._balancer):
                self._tried = []
        if self._waiting:
            self._tally.dial_retries += 1
        self._attempt()

    def _fail(self) -> None:
        tally = self._tally
        if self._waiting:
            tally.silent += 1
        elif not len(self._balancer):
            tally.nobody += 1
        elif self._balancer.aside:
            tally.refused += 1
        else:
            tally.unable += 1
        self._end()

    def _end(self) -> None:
        for fd in list(self._waiting):
            self._drop(fd)
        self._context.live.discard(self)
        reset_on_close(self._client)
        self._context.reactor.close(self._client)
        self._context.budget.give(2)


def begin_connecting(target: Target, *, keepalive_s: int, client: str | None) -> int:
    """A descriptor whose connection to an endpoint is under way, from the address of `client` if one is given. OSError
    when it could not even begin."""
    family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        set_stream_options(sock, keepalive_s=keepalive_s)
        if client is not None:
            bind_as(sock, client)
        error = sock.connect_ex(target)
        if error not in UNDER_WAY:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock.detach()


def _is_own_echo(fd: int) -> bool:
    """Whether the kernel, by a simultaneous open, has connected the socket to itself: possible where a local endpoint
    is gone and its port lies in the ephemeral range."""
    sock = socket.socket(fileno=fd)
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False
    finally:
        sock.detach()


def set_stream_options(sock: socket.socket, *, keepalive_s: int) -> None:
    """What both legs have; a listener hands its own down to what it accepts. Urgent data stays in line: a proxy that
    took it out would lose it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive_s)
