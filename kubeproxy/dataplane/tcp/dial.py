"""Finds an endpoint that answers, for one accepted client.

Dials are independent, so no client waits for another. A dial has steps, which are timeouts (`Tune.dial_steps_s`). When
a step ends without an answer, the next endpoint is tried *in parallel* to the silent one, which may only be slow, and
the first one to answer is used. After a refusal the next endpoint is tried at once. When all endpoints, or
`ATTEMPTS_PER_STEP` of them, have been tried in a step, the dial waits for the next step and continues, with the first
endpoints again if need be. So it can reach an endpoint that is just restarting. When the last step ends, or there is no
endpoint, the client is reset. Ejected endpoints are probed separately (`probe`), and not with the client's dial.

Most clients send first, and their first bytes have arrived when the dial begins. On a short path the handshake is over
when even a non-blocking `connect` returns. So those bytes are written to the endpoint at once. If the write succeeds,
the endpoint has answered, and is woken only once for the connection and the first message.
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
"""The largest number of connects in one step. It matters if a Service has very many endpoints that all refuse."""


class Dial:
    """A client that is not connected to an endpoint yet.

    The dial owns the client's socket, the sockets that wait for an answer, and the claim on their descriptors. Two
    descriptors are claimed by the caller: the client's, and one for dialing. Any further one is claimed here.
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
        """`client_address` includes the port. `hops` is the hop limit of the dials; with 0 the client is reset. `entry`
        is for the connection log, or None."""
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
        """The first bytes from the client."""
        self._waiting: dict[int, Target] = {}
        self._tried: list[Target] = []
        self._step = 0
        self._attempts = 0
        """The number of attempts in the present step."""
        self._failure = ""
        """``refused`` if an endpoint has refused, or else ``unreachable`` if one has failed in another way, or else
        empty."""
        self._entry = entry
        context.live.add(self)

    @property
    def targets(self) -> Collection[Target]:
        """Return the endpoints that are being dialed."""
        return self._waiting.values()

    def begin(self) -> None:
        """Start the first step."""
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
                # Nothing has been read yet, so the dial can start again if freeing the reserve helps.
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
        """Dial the next endpoints of this step until one does not refuse, and start a probe if one is due."""
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
        """Connect to an endpoint. Return whether the connection is established or in progress."""
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
        """Return the source address for a dial, or None for an address of this node."""
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
        """Create the connection to the endpoint that has answered. The first `sent` early bytes are already written.
        Raise OSError or MemoryError if this host lacks resources for it."""
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
        """Start the next step, unless the dial has finished."""
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
            # All endpoints have been tried. Try all again, the silent ones last.
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
