"""Finding an endpoint that answers, for one accepted client. Never inside accept; no client waits for another.

The ladder (`Tune.dial_steps_s`) gives each attempt its time. When a step ends without an answer the next endpoint is
tried *beside* the one that is silent, and the first to answer wins: a slow network is not a dead endpoint. An endpoint
that refuses makes room for the next one at once. When all were tried in this step, the dial waits for the next step and
begins again, so that an endpoint that is just being restarted is waited for. When the last step ends, or there is
nobody to dial, the client is reset. Endpoints that are put aside are not tried at a client's expense (`trial`).

Most clients speak first, and have spoken by the time they are dialed for. On a short way the handshake is over when
`connect` returns, non-blocking or not. So what the client has said is offered to the endpoint at once: if it is taken,
the endpoint has answered, and was woken once for the connection and its first message.
"""

from __future__ import annotations

import errno
from functools import partial
from os import read, write
from typing import TYPE_CHECKING

from kubeproxy.dataplane.sockets.client_address import can_preserve
from kubeproxy.dataplane.sockets.connect import HUNG_UP, UNREACHABLE, begin_connecting, is_own_echo
from kubeproxy.dataplane.sockets.options import reset_on_close
from kubeproxy.dataplane.tcp.connection import READ_BYTES, Connection
from kubeproxy.dataplane.tcp.probe import EndpointProbe

if TYPE_CHECKING:
    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.connection_log import Entry
    from kubeproxy.dataplane.context import Context, FrontendCounters
    from kubeproxy.model import Target

ATTEMPTS_PER_STEP = 8
"""So that one client of a service whose thousand endpoints all refuse does not cost a thousand connects."""


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
        "_counters",
        "_early",
        "_entry",
        "_hops",
        "_preserve",
        "_refused",
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
        client_address: str,
        hops: int,
        preserve: frozenset[Target],
        entry: Entry | None,
    ) -> None:
        """`hops`: how far the dials may go, 0: nowhere. The entry is for the journal, if there is to be one."""
        self.since = context.reactor.now
        self._context = context
        self._counters = counters
        self._balancer = balancer
        self._client = client
        self._client_address = client_address
        self._hops = hops
        self._preserve = preserve
        self._client_events = 0
        self._watched = False
        """Whether the client's events are heard of."""
        self._early = b""
        """What the client has said already."""
        self._waiting: dict[int, Target] = {}
        self._tried: list[Target] = []
        self._step = 0
        self._attempts = 0
        """In this step."""
        self._refused = False
        """Whether some endpoint has refused, or could not be reached."""
        self._entry = entry
        context.live.add(self)

    def begin(self) -> None:
        """Begin with the first step of the ladder."""
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
                # Nothing has been read yet, so whoever finds that there is no memory need not pay for it.
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
        """This host cannot serve this client now."""
        if isinstance(error, MemoryError):
            self._context.memory.spend()
        if self in self._context.live:
            self._counters.unable += 1
            self._end("unable")

    def abort(self) -> None:
        """End it now; the client sees a reset."""
        self._end("cut")

    def _attempt(self) -> None:
        """Dial the next endpoints of this step, until one has not refused at once; and let one whose time aside is over
        be tried beside."""
        if self._balancer.ejected and (due := self._balancer.due(self._context.reactor.now)) is not None:
            EndpointProbe(self._context, self._balancer, due).begin(client=self._speak_as(due), hops=self._hops)
        while self._attempts < ATTEMPTS_PER_STEP:
            target = self._balancer.pick(self._client_address, self._context.reactor.now, self._tried)
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
        """Whether a connection to this endpoint is under way, or there."""
        context = self._context
        if self._waiting and not context.budget.take(1, self._counters.share):
            return False
        try:
            fd = begin_connecting(target, client=self._speak_as(target), hops=self._hops)
        except OSError as error:
            if error.errno in UNREACHABLE:
                self._refuse(target, "refused" if error.errno == errno.ECONNREFUSED else "unreachable")
            elif error.errno == errno.EADDRNOTAVAIL:
                context.ports_exhausted += 1
            if self._waiting:
                context.budget.give(1, self._counters.share)
            return False
        self._waiting[fd] = target
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
                self._refuse(target, "refused")
            return False
        if sent:
            self._arrive(fd, sent, 0)
        return True

    def _speak_as(self, target: Target) -> str | None:
        """Whose address the endpoint is to see; None: this node's."""
        client = self._client_address
        return client if target in self._preserve and can_preserve(client, target.address) else None

    def _refuse(self, target: Target, reason: str) -> None:
        self._refused = True
        self._balancer.failed(target, self._context.reactor.now, reason)

    def _drop(self, fd: int) -> None:
        del self._waiting[fd]
        self._context.reactor.close(fd)
        if self._waiting:
            self._context.budget.give(1, self._counters.share)

    def _on_endpoint(self, fd: int, what: int) -> None:
        target = self._waiting[fd]
        try:
            if what & HUNG_UP or is_own_echo(fd, target):
                self._drop(fd)
                self._refuse(target, "refused")
                self._counters.dial_retries += 1
                self._attempt()
            else:
                self._arrive(fd, 0, what)
        except (OSError, MemoryError) as error:
            self._give_up(error)

    def _arrive(self, fd: int, sent: int, what: int) -> None:
        """This endpoint has answered, and taken so many of the client's early bytes. OSError or MemoryError: and still
        there can be no connection."""
        context, target = self._context, self._waiting[fd]
        if len(self._waiting) > 1:
            for loser in [other for other in self._waiting if other != fd]:
                self._drop(loser)
        if not self._watched:
            context.reactor.add(self._client, self._on_client)
            self._watched = True
        connection = Connection(
            context, self._counters, client=self._client, endpoint=fd, since=self.since, entry=self._entry
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
        """The present step is over: on to the next one, unless there is an endpoint (or no client) by now."""
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
            # All had their turn: once more, those that are silent last.
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
        elif self._refused:
            counters.refused += 1
            reason = "refused"
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
