"""Finds an endpoint that answers, for one accepted client.

Each dial is independent, so no client waits for another. The steps (`Tune.dial_steps_s`) are timeouts. When a step ends
without an answer, the next endpoint is tried *beside* the silent one, and the first to answer wins, because a slow
network is not a dead endpoint. After a refusal the next endpoint is tried at once. When all were tried in a step, the
dial waits for the next step and begins again. So it reaches an endpoint that is just restarting. When the last step
ends, or there is no endpoint, the client is reset. Ejected endpoints are probed beside the dial (`probe`), and not by
the client.

Most clients send first, and their first bytes are there when the dial begins. On a short path the handshake is over
when `connect` returns, non-blocking or not. So those bytes are written to the endpoint at once. If the write succeeds,
the endpoint has answered, and is woken only once for the connection and its first message.
"""

from __future__ import annotations

import errno
from functools import partial
from os import read, write
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.connect import (
    HUNG_UP,
    UNREACHABLE,
    begin_connecting,
    failure,
    is_own_echo,
    pending_failure,
)
from kubeproxy.dataplane.sockets.fd_calls import reset_on_close
from kubeproxy.dataplane.sockets.transparent_dial import can_preserve
from kubeproxy.dataplane.tcp.connection import Connection
from kubeproxy.dataplane.tcp.flow import READ_BYTES
from kubeproxy.dataplane.tcp.probe import EndpointProbe

if TYPE_CHECKING:
    from collections.abc import Collection

    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.connection_log import Entry
    from kubeproxy.dataplane.context import Context, FrontendCounters
    from kubeproxy.model import Target

ATTEMPTS_PER_STEP = 8
"""The largest number of connects in one step. It matters for a client of a Service with a thousand endpoints that all
refuse."""


class Dial:
    """A client that has no endpoint yet.

    It owns the client's socket, the sockets that wait for an answer, and the claim on their descriptors. Two
    descriptors come with the client, its own and one to dial with. Each further one is claimed here.
    """

    __slots__ = (
        "_attempts",
        "_balancer",
        "_client",
        "_client_address",
        "_client_events",
        "_client_port",
        "_context",
        "_counters",
        "_early",
        "_entry",
        "_failure",
        "_hops",
        "_preserve",
        "_step",
        "_tried",
        "_waiting",
        "_watched",
        "since",
    )

    def __init__(
        self,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        *,
        client: int,
        client_address: tuple[str, int],
        hops: int,
        preserve: frozenset[Target],
        entry: Entry | None,
    ) -> None:
        """`client_address` has the port. `hops` is the hop limit of the dials; with 0 the client is reset. `entry` is
        for the connection log, if there is one."""
        self.since = context.reactor.now
        self._context = context
        self._counters = counters
        self._balancer = balancer
        self._client = client
        self._client_address, self._client_port = client_address
        self._hops = hops
        self._preserve = preserve
        self._client_events = 0
        self._watched = False
        """Whether the reactor watches the client's socket."""
        self._early = b""
        """The client's first bytes."""
        self._waiting: dict[int, Target] = {}
        self._tried: list[Target] = []
        self._step = 0
        self._attempts = 0
        """The number of attempts in the present step."""
        self._failure = ""
        """``refused`` if an endpoint has refused, ``unreachable`` if one failed otherwise, and empty if none has
        failed."""
        self._entry = entry
        context.live.add(self)

    @property
    def targets(self) -> Collection[Target]:
        """Return the endpoints that are being dialed."""
        return self._waiting.values()

    def begin(self) -> None:
        """Begin the first step."""
        context = self._context
        if self not in context.live:
            return
        if not self._hops:
            self._counters.looped += 1
            context.looped += 1
            self._end("loop")
            return
        try:
            try:
                self._early = read(self._client, READ_BYTES)
            except BlockingIOError:
                pass
            except MemoryError:
                # Nothing has been read yet, so the dial can begin again if the reserve makes room.
                if not context.memory.spend():
                    raise
                context.reactor.again(self.begin)
                return
            except OSError:
                self._end("reset by client")
                return
            self._attempt()
            if self in context.live:
                context.reactor.add(self._client, self._on_client)
                self._watched = True
                context.step_timeouts.step(self, context.tune.dial_steps_s[0])
        except (OSError, MemoryError) as error:
            self._give_up(error)

    def _give_up(self, error: OSError | MemoryError) -> None:
        """End the dial because of an error of this host."""
        if isinstance(error, MemoryError):
            self._context.memory.spend()
        if self in self._context.live:
            self._counters.unable += 1
            self._end("unable")

    def abort(self) -> None:
        """End the dial now. The client gets a reset."""
        self._end("cut")

    def _attempt(self) -> None:
        """Dial the next endpoints of this step until one does not refuse; start a due probe."""
        if self._balancer.ejected and (due := self._balancer.due(self._context.reactor.now)) is not None:
            EndpointProbe(self._context, self._balancer, due).begin(client=self._source_address(due), hops=self._hops)
        while self._attempts < ATTEMPTS_PER_STEP:
            target = self._balancer.pick(
                self._client_address, self._context.reactor.now, self._tried, port=self._client_port
            )
            if target is None:
                break
            self._attempts += 1
            self._tried.append(target)
            if self._entry is not None:
                self._entry.attempts += 1
            if self._connect(target):
                return
            self._counters.dial_retries += 1
        if not self._waiting and not len(self._balancer):
            self._fail()

    def _connect(self, target: Target) -> bool:
        """Connect to an endpoint, and return whether the connection is made or in progress."""
        context = self._context
        if self._waiting and not context.budget.take(1, self._counters.share):
            return False
        try:
            fd = begin_connecting(target, client=self._source_address(target), hops=self._hops)
        except OSError as error:
            if error.errno in UNREACHABLE:
                self._refuse(target, failure(error.errno))
            elif error.errno == errno.EADDRNOTAVAIL:
                context.ports_exhausted += 1
            if self._waiting:
                context.budget.give(1, self._counters.share)
            return False
        self._waiting[fd] = target
        self._balancer.opened(target)
        sent = 0
        try:
            context.reactor.add(fd, partial(self._on_endpoint, fd))
            if self._early and not is_own_echo(fd, target):
                sent = write(fd, self._early)
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(fd)
            if error.errno in UNREACHABLE:
                self._refuse(target, failure(error.errno))
            return False
        if sent:
            self._arrive(fd, sent, 0)
        return True

    def _source_address(self, target: Target) -> str | None:
        """Return the address to dial from, or None for this node's."""
        client = self._client_address
        preserved = target in self._preserve and can_preserve(client, target.address, self._context.routes)
        return client if preserved else None

    def _refuse(self, target: Target, reason: str) -> None:
        if self._failure != "refused":
            self._failure = reason
        self._balancer.failed(target, self._context.reactor.now, reason)

    def _drop(self, fd: int) -> None:
        self._balancer.closed(self._waiting.pop(fd))
        self._context.reactor.close(fd)
        if self._waiting:
            self._context.budget.give(1, self._counters.share)

    def _on_endpoint(self, fd: int, what: int) -> None:
        target = self._waiting[fd]
        try:
            if what & HUNG_UP or is_own_echo(fd, target):
                reason = pending_failure(fd) if what & HUNG_UP else "refused"
                self._drop(fd)
                self._refuse(target, reason)
                self._counters.dial_retries += 1
                self._attempt()
            else:
                self._arrive(fd, 0, what)
        except (OSError, MemoryError) as error:
            self._give_up(error)

    def _arrive(self, fd: int, sent: int, what: int) -> None:
        """Make the connection to the endpoint that answered. `sent` of the early bytes are written. Raise OSError or
        MemoryError when this host cannot make it."""
        context, target = self._context, self._waiting[fd]
        if len(self._waiting) > 1:
            for loser in [other for other in self._waiting if other != fd]:
                self._drop(loser)
        if not self._watched:
            context.reactor.add(self._client, self._on_client)
            self._watched = True
        connection = Connection(
            context,
            self._counters,
            self._balancer,
            client=self._client,
            endpoint=fd,
            target=target,
            since=self.since,
            entry=self._entry,
        )
        self._waiting.clear()
        context.live.discard(self)
        dial_s = context.reactor.clock() - self.since
        context.dial_times.add(dial_s)
        self._balancer.answered(target)
        self._balancer.settle(self._client_address, target, context.reactor.now)
        if self._entry is not None:
            self._entry.endpoint = target
            self._entry.dial_s = dial_s
        connection.begin(early=self._early, sent=sent, client_events=self._client_events, endpoint_events=what)

    def _on_client(self, what: int) -> None:
        if what & HUNG_UP:
            self._end("reset by client")
        else:
            self._client_events |= what

    def on_step_over(self) -> None:
        """Begin the next step, unless the dial has finished."""
        if self in self._context.live:
            try:
                self._next_step()
            except (OSError, MemoryError) as error:
                self._give_up(error)

    def _next_step(self) -> None:
        tune, now = self._context.tune, self._context.reactor.now
        for silent in set(self._waiting.values()):
            self._balancer.failed(silent, now, "timeout")
        self._step += 1
        if self._step >= len(tune.dial_steps_s):
            self._fail()
            return
        self._context.step_timeouts.step(self, tune.dial_steps_s[self._step])
        self._attempts = 0
        if len(self._tried) >= len(self._balancer):
            # All endpoints were tried, so try all again, the silent ones last.
            self._tried = list(self._waiting.values())
            if len(self._tried) >= len(self._balancer):
                self._tried = []
        if self._waiting:
            self._counters.dial_retries += 1
        self._attempt()

    def _fail(self) -> None:
        counters = self._counters
        if self._waiting:
            counters.silent += 1
            reason = "timeout"
        elif not len(self._balancer):
            counters.no_endpoint += 1
            reason = "no endpoint"
        elif self._failure:
            reason = self._failure
            if reason == "refused":
                counters.refused += 1
            else:
                counters.unreachable += 1
        else:
            counters.unable += 1
            reason = "unable"
        self._end(reason)

    def _end(self, reason: str) -> None:
        context = self._context
        for fd in list(self._waiting):
            self._drop(fd)
        context.live.discard(self)
        reset_on_close(self._client)
        context.reactor.close(self._client)
        context.budget.give(2, self._counters.share)
        if self._entry is not None:
            context.connection_log.add(self._entry.ended(reason, duration_s=context.reactor.now - self.since))
