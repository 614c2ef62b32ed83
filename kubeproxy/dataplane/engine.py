"""Applies messages to the listeners of one process. All processes of the data plane use the same code."""

from __future__ import annotations

import math
import os
import random
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from kubeproxy.dataplane.balancing.affinity import pieces
from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.balancing.ejections import Ejection
from kubeproxy.dataplane.budgets.fd_budget import Tenant
from kubeproxy.dataplane.context import Context, FrontendCounters
from kubeproxy.dataplane.interface import (
    NOTHING,
    PREVIEWS_MAX,
    BalancePreview,
    Counters,
    EjectedEndpoint,
    Ended,
    WorkerStatus,
)
from kubeproxy.dataplane.messages import (
    Join,
    Listen,
    MarkEndpoint,
    Message,
    RestoreBindings,
    Retire,
    SetEndpoints,
    Tune,
)
from kubeproxy.dataplane.movable import Frozen, Movable, State
from kubeproxy.dataplane.tcp.connection import Connection, FrozenConnection
from kubeproxy.dataplane.tcp.half_closed import HalfClosedSweep
from kubeproxy.dataplane.tcp.keepalive import KeepaliveSweep
from kubeproxy.dataplane.tcp.listener import Listener
from kubeproxy.dataplane.tcp.shared_listener import SharedListener
from kubeproxy.dataplane.udp.sessions import DatagramListener, FrozenSession, Sessions
from kubeproxy.dataplane.udp.state import SessionState
from kubeproxy.model import Address, FrontendName, Protocol, Target


class Engine:
    """The listeners of one process.

    `open_socket` returns a bound socket to listen on. The caller still owns the socket, and gets it back through
    `close_socket` when the engine no longer uses it.
    """

    def __init__(
        self,
        context: Context,
        *,
        open_socket: Callable[[Listen], socket.socket],
        close_socket: Callable[[socket.socket], None],
        rng: random.Random,
    ) -> None:
        self._context = context
        self._open_socket = open_socket
        self._close_socket = close_socket
        self._rng = rng
        self._began = time.time()
        self._sessions = Sessions(context)
        self._half_closed = HalfClosedSweep(context)
        self._half_closed.restart()
        self._keepalive = KeepaliveSweep(context)
        self._keepalive.restart()
        self._listeners: dict[FrontendName, Listener | DatagramListener] = {}
        self._joined: dict[FrontendName, SharedListener] = {}
        """The shared listener of each frontend that has joined one and has no socket of its own."""
        self._early: dict[FrontendName, dict[FrontendName, Join]] = {}
        """The frontends that have joined a listener that is not open yet, by the name of the listener."""
        self._previous: dict[FrontendName, Listener | DatagramListener] = {}
        """The listeners that were replaced. They listen until `close_previous` is called."""
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        """The tenants of the budget, by namespace."""
        self._sockets: dict[Listener | DatagramListener, socket.socket] = {}
        self._reported: dict[FrontendName, Counters] = {}
        """The counters of all frontends that are served, as last read."""

    def handle(self, messages: Sequence[Message]) -> dict[FrontendName, str]:
        """Apply messages in order. Return the failures as texts, by frontend."""
        failures: dict[FrontendName, str] = {}
        for message in messages:
            match message:
                case Listen():
                    if (failure := self._listen(message)) is not None:
                        failures[message.frontend] = failure
                case Join():
                    self._join(message)
                case SetEndpoints(frontend=name):
                    if (listener := self._listeners.get(name)) is not None:
                        listener.set_endpoints(message)
                case MarkEndpoint(frontend=name, target=target, reason=reason):
                    if (listener := self._listeners.get(name)) is None:
                        continue
                    if reason is None:
                        listener.balancer.answered(target)
                    else:
                        listener.balancer.failed(target, self._context.reactor.clock(), reason)
                case RestoreBindings(frontend=name):
                    if (listener := self._listeners.get(name)) is not None:
                        listener.balancer.restore_bindings(message.bindings, self._context.reactor.clock())
                        self._context.touched.add(listener.counters)
                case Retire(frontend=name):
                    self.close_previous(name)
                    for early in self._early.values():
                        early.pop(name, None)
                    if (shared := self._joined.pop(name, None)) is not None and isinstance(
                        joined := self._listeners.get(name), Listener
                    ):
                        shared.leave(joined)
                    if (listener := self._listeners.pop(name, None)) is not None:
                        listener.balancer.share((), ())  # The listener's columns may belong to another frontend now.
                        listener.balancer.frontend = None
                        self._context.failing.discard(listener.balancer)
                    self._end(listener)
                    self._reported.pop(name, None)
                case Tune():
                    self._tune(message)
        return failures

    def _tune(self, tune: Tune) -> None:
        before, self._context.tune = self._context.tune, tune
        if (tune.half_closed_idle_s, tune.unanswered_idle_s) != (before.half_closed_idle_s, before.unanswered_idle_s):
            self._half_closed.restart()
        if tune.keepalive_s != before.keepalive_s:
            self._keepalive.restart()

    def _listen(self, message: Listen) -> str | None:
        if message.frontend in self._listeners:
            return None
        listener = self._open(message)
        if isinstance(listener, str):
            return listener
        self._serve(message.frontend, listener)
        if message.shared:
            del self._reported[message.frontend]  # A shared listener has no counters; its frontends have.
            for early in self._early.pop(message.frontend, {}).values():
                self._join(early)  # Still in this call, so before the listener accepts a client.
        return None

    def _join(self, message: Join) -> None:
        """Serve a frontend on a shared listener, at once or when the listener opens. (A new worker gets shared
        listeners last.)"""
        listener = self._listeners.get(message.frontend)
        if not isinstance(listener, Listener):
            listener = Listener(self._context, None, rng=self._rng)
            self._serve(message.frontend, listener)
        shared = self._listeners.get(message.listener)
        if not isinstance(shared, SharedListener):
            self._early.setdefault(message.listener, {})[message.frontend] = message
            return
        self._joined[message.frontend] = shared
        shared.enter(listener, message.destinations)

    def _serve(self, name: FrontendName, listener: Listener | DatagramListener) -> None:
        listener.counters.frontend = listener.balancer.frontend = name
        tenant = listener.counters.share.tenant
        listener.counters.share.tenant = self._tenants.setdefault(name.service_port.namespace, tenant)
        self._listeners[name] = listener
        self._reported[name] = NOTHING

    def listen_on_new(self, message: Listen) -> str | None:
        """Serve a frontend on a new socket in addition to the present one, which stays in use until `close_previous`.
        Return None, or the failure as text."""
        before, listener = self._listeners[message.frontend], self._open(message)
        if isinstance(listener, str):
            return listener
        listener.balancer, listener.counters = before.balancer, before.counters
        self.close_previous(message.frontend)
        self._previous[message.frontend] = before
        self._listeners[message.frontend] = listener
        return None

    def close_previous(self, frontend: FrontendName) -> None:
        """Close the listener that was replaced by `listen_on_new`, if there is one."""
        self._end(self._previous.pop(frontend, None))

    def _open(self, message: Listen) -> Listener | DatagramListener | str:
        try:
            sock = self._open_socket(message)
            listener: Listener | DatagramListener
            try:
                if message.protocol is Protocol.UDP:
                    listener = DatagramListener(self._context, self._sessions, sock, rng=self._rng)
                else:
                    listener = (SharedListener if message.shared else Listener)(self._context, sock, rng=self._rng)
            except OSError:
                self._close_socket(sock)
                raise
        except OSError as error:
            return f"cannot listen on {message.address} port {message.port}: {error.strerror or error}"
        self._sockets[listener] = sock
        return listener

    def _end(self, listener: Listener | DatagramListener | None) -> None:
        if listener is not None and (sock := self._sockets.pop(listener, None)) is not None:
            listener.close()
            self._close_socket(sock)

    @property
    def frontends(self) -> tuple[FrontendName, ...]:
        """Return the frontends that are served."""
        return tuple(self._listeners)

    def serves(self, frontend: FrontendName) -> bool:
        """Return whether a frontend is served."""
        return frontend in self._listeners

    def changed_counters(self) -> Iterator[tuple[FrontendName, Counters] | None]:
        """Yield the counters that have changed since they were last read (by this method or by `counters`), and None
        for an unchanged frontend. The caller may pause between two steps, or stop. Frontends without clients are
        skipped."""
        touched = self._context.touched
        for tally in tuple(touched):
            name = tally.frontend
            listener = None if name is None else self._listeners.get(name)
            if name not in self._reported or listener is None or listener.counters is not tally:
                touched.discard(tally)
                continue
            counters = tally.read(affinity_entries=listener.balancer.affinity_entries)
            if counters != self._reported[name]:
                self._reported[name] = counters
                yield name, counters
            else:
                # A frontend is removed only after a reading without a change. Otherwise bytes that are written at the
                # end of this turn, perhaps of the last connection, would not be reported.
                if not (counters.active or counters.affinity_entries or tally.share.held):
                    touched.discard(tally)
                yield None

    def counters(self) -> dict[FrontendName, Counters]:
        """Return the counters of all frontends that are served."""
        for _ in self.changed_counters():
            pass
        return self.last_counters()

    def last_counters(self) -> dict[FrontendName, Counters]:
        """Return the counters as last read by `changed_counters`."""
        return self._reported.copy()

    def ejected(self, *, worker: int = 0) -> Iterator[tuple[FrontendName, tuple[EjectedEndpoint, ...]] | None]:
        """Yield the ejected endpoints of each frontend, or None for a frontend without any. The caller may pause
        between two steps. Frontends without failures are skipped."""
        failing = self._context.failing
        for balancer in tuple(failing):
            name, ejected = balancer.frontend, balancer.ejected
            if name is None or not ejected:
                failing.discard(balancer)
                yield None
            else:
                yield name, _ejected_of(ejected, self._context.reactor.clock(), worker)

    def bindings(self, *, since: float = -math.inf) -> Iterator[RestoreBindings | None]:
        """Yield the affinity bindings used since `since` (by the reactor's clock), and None at the end of each
        frontend. The caller may pause between two steps."""
        for tally in tuple(self._context.touched):
            name = tally.frontend
            listener = None if name is None else self._listeners.get(name)
            if name is not None and listener is not None and listener.balancer.affinity_entries:
                yield from pieces(name, listener.balancer.bindings(self._context.reactor.clock(), since=since))
            yield None

    def movable(self) -> tuple[Movable, ...]:
        """Return everything that could move to another process now. A dial can move only after it has become a
        connection. UDP sessions come first, because their clients' datagrams already arrive at the other process."""
        sessions = (session for session in self._sessions.all() if session.target is not None)
        return (*sessions, *(live for live in self._context.live if isinstance(live, Connection)))

    @property
    def open(self) -> int:
        """Return the number of open connections, dials and sessions."""
        return len(self._context.live) + len(self._sessions)

    @property
    def room(self) -> int:
        """Return how many descriptors are available for connections of another process. A part of the budget is left
        for new clients."""
        return self._context.budget.spare

    def claim(self, state: State, descriptors: Sequence[int]) -> Frozen | None:
        """Return a connection or session of another process, ready to continue here, or None if there is no room for
        it. A connection's frontend need not be served here. A UDP session needs the listener of its frontend, and
        without that the result is None, too."""
        listener = None if state.frontend is None else self._listeners.get(state.frontend)
        if isinstance(state, SessionState):
            return FrozenSession.claim(listener, state, descriptors) if isinstance(listener, DatagramListener) else None
        if isinstance(listener, Listener):
            counters, balancer = listener.counters, listener.balancer
        else:
            counters, balancer = FrontendCounters(), Balancer(rng=self._rng)
            counters.frontend = state.frontend
        self._context.touched.add(counters)
        return FrozenConnection.claim(self._context, counters, balancer, state, descriptors)

    def adopt(self, frozen: Frozen) -> None:
        """Continue a connection or session that `claim` has returned."""
        self._context.adopted += 1
        if isinstance(moved := frozen.thaw(), Connection):
            moved.adopt()

    def open_to(self, addresses: Collection[Address], counts: dict[Address, int]) -> Iterator[None]:
        """Add the number of open connections, dials and UDP sessions to each of these addresses to `counts`. The caller
        may pause between two steps. Connections that begin meanwhile are not counted."""
        for live in tuple(self._context.live):
            for target in live.targets if live in self._context.live else ():
                if target.address in addresses:
                    counts[target.address] = counts.get(target.address, 0) + 1
            yield
        for session_target in self._sessions.targets():
            if session_target is not None and session_target.address in addresses:
                counts[session_target.address] = counts.get(session_target.address, 0) + 1
            yield

    def open_by_endpoint(self) -> Iterator[tuple[FrontendName, Mapping[Target, int]] | None]:
        """Yield each frontend with its number of open connections by endpoint, or None for a frontend without any. The
        caller may pause between two steps."""
        for tally in tuple(self._context.touched):
            name = tally.frontend
            listener = None if name is None else self._listeners.get(name)
            yield (name, listener.balancer.open) if name is not None and listener and listener.balancer.open else None

    def preview(self, frontend: FrontendName, client: Address, port: int, *, worker: int = 0) -> BalancePreview | None:
        """Return the endpoints that the next connection of a client would try, or None if the frontend is not
        served."""
        listener = self._listeners.get(frontend)
        if listener is None:
            return None
        now = self._context.reactor.clock()
        bound, order = listener.balancer.preview(client, now, limit=PREVIEWS_MAX, port=port)
        return BalancePreview(worker, order, bound)

    def worker_status(self, *, worker: int = 0) -> WorkerStatus:
        """Return the status of this process."""
        context = self._context
        return WorkerStatus(
            pid=os.getpid(),
            number=worker,
            began=self._began,
            connections=len(context.live),
            udp_sessions=len(self._sessions),
            descriptors=context.budget.used,
            descriptors_limit=context.budget.limit,
            accept_paused=context.budget.refusals,
            lag_s=context.lag.longest_s(),
            dials=tuple(context.dial_times.counts),
            dial_seconds=context.dial_times.seconds,
            log_skipped=context.connection_log.forgotten,
            memory_shortages=context.memory.shortages,
            ports_exhausted=context.ports_exhausted,
            looped=context.looped,
            adopted=context.adopted,
            adopted_open=context.adopted_open,
        )

    def take_ended(self) -> list[Ended]:
        """Return the connections that have ended since the last call (see `DataPlane.ended`)."""
        return self._context.connection_log.take()

    def retire(self) -> Iterator[None]:
        """Stop accepting, one frontend per step. Clients that are already queued are accepted, and open connections
        continue. The caller may pause between two steps."""
        # Close shared listeners first: they accept the queued clients of their frontends, which must still be served
        # then.
        for name in sorted(self.frontends, key=lambda it: not isinstance(self._listeners[it], SharedListener)):
            self.handle((Retire(name),))
            yield

    def close(self) -> None:
        """Close the listeners, and then reset all connections."""
        for _ in self.retire():
            pass
        for live in list(self._context.live):
            live.abort()
        for probe in list(self._context.probes):
            probe.abort()
        self._context.pipes.close()


def _ejected_of(ejections: Mapping[Target, Ejection], now: float, worker: int) -> tuple[EjectedEndpoint, ...]:
    return tuple(
        EjectedEndpoint(
            target=target,
            worker=worker,
            reason=ejected.reason,
            failures=ejected.failures,
            retry_in_s=max(0.0, ejected.until - now) if not ejected.probing else 0.0,
            for_s=max(0.0, now - ejected.since),
        )
        for target, ejected in ejections.items()
    )
