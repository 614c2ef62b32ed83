"""A proxied TCP connection between a client and an endpoint, with a flow in each direction (`flow`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kubeproxy.dataplane.budgets.pipe_pool import Pipe
from kubeproxy.dataplane.sockets.fd_calls import finish_writing, keep_alive, reset_on_close
from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.tcp.flow import NO_MEMORY, READABLE, Flow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kubeproxy.dataplane.balancing.balancer import Balancer
    from kubeproxy.dataplane.connection_log import Entry
    from kubeproxy.dataplane.context import Context, FrontendCounters
    from kubeproxy.model import Target


class Connection:
    """A client connected to an endpoint. The connection owns both descriptors and their claim on the budget."""

    __slots__ = (
        "_balancer",
        "_client",
        "_context",
        "_counters",
        "_endpoint",
        "_entry",
        "adopted",
        "down",
        "kept_alive",
        "quiet",
        "shared",
        "since",
        "target",
        "up",
    )
    __deletable__ = ("down", "up")  # mypyc needs this for attributes that are deleted

    def __init__(
        self,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        *,
        client: int,
        endpoint: int,
        target: Target,
        since: float,
        entry: Entry | None,
    ) -> None:
        """The reactor already watches both descriptors, and the balancer has counted the connection. `entry` is for the
        connection log, or None."""
        self.since = since
        self.target = target
        """The endpoint."""
        self.adopted = False
        """Whether the connection was begun by another instance, on a port of that instance."""
        self.shared = False
        """Whether another process may also have the descriptors, so that closing them here does not end the
        connection."""
        self.kept_alive = False
        """Whether TCP keepalive is on towards the endpoint."""
        self.quiet: tuple[int, float] | None = None
        """If the connection is half-closed: the number of bytes moved so far, and when a check first saw that number
        (`half_closed`)."""
        self._context = context
        self._counters = counters
        self._balancer = balancer
        self._client = client
        self._endpoint = endpoint
        self._entry = entry
        turn_end = context.turn_end
        to_endpoints, to_clients = turn_end.to_endpoints, turn_end.to_clients
        up = self.up = Flow(context, self, client, endpoint, meter=counters.in_meter, queue_write=to_endpoints)
        down = self.down = Flow(context, self, endpoint, client, meter=counters.out_meter, queue_write=to_clients)
        up.reverse, down.reverse = down, up
        context.reactor.hand_over(client, up.on_event)
        context.reactor.hand_over(endpoint, down.on_event)
        context.live.add(self)  # Before counting, so that nothing has to be undone if this raises MemoryError.
        counters.active += 1

    def begin(self, *, early: bytes, sent: int, client_events: int, endpoint_events: int) -> None:
        """Continue after the dial, with the bytes and events that came before. `early` was read from the client; the
        first `sent` bytes of it are already written to the endpoint."""
        up, down = self.up, self.down
        try:
            if early:
                up.begin_with(early, sent)
        except MemoryError:
            self.abort(NO_MEMORY)
            return
        if client_events & READABLE:
            up.on_event(client_events)
        if endpoint_events & READABLE and down.open:
            down.on_event(endpoint_events)

    @property
    def targets(self) -> Collection[Target]:
        """Return the endpoint."""
        return (self.target,)

    @property
    def client(self) -> None:
        """Return None, because any worker of another instance may continue the connection."""
        return None

    @property
    def half_closed(self) -> bool:
        """Return whether one side has sent FIN and the other has not."""
        return self.up.open is not self.down.open

    @property
    def unanswered(self) -> bool:
        """Return whether the client has sent FIN although the endpoint has not sent a byte."""
        return not self.up.open and self.down.open and not self.down.count

    @property
    def moved(self) -> int:
        """Return the number of bytes moved so far in both directions."""
        return self.up.count + self.down.count

    def adopt(self) -> None:
        """Record that another instance has begun the connection."""
        if not self.adopted:
            self.adopted = True
            self._context.adopted_open += 1

    def keep_alive(self, seconds: int) -> None:
        """Turn on TCP keepalive towards the endpoint."""
        self.kept_alive = True
        keep_alive(self._endpoint, seconds)

    def finish(self) -> None:
        """End a connection after both sides have closed."""
        if self.shared:
            finish_writing(self._client)
            finish_writing(self._endpoint)
        self._end("closed")

    def reset_by(self, flow: Flow) -> None:
        """Reset the connection because the source of `flow` is dead."""
        self.abort("reset by client" if flow is self.up else "reset by endpoint")

    def abort(self, reason: str = "cut") -> None:
        """End the connection now. Both sides get a reset."""
        if self in self._context.live:
            reset_on_close(self._client)
            reset_on_close(self._endpoint)
            self._end(reason)
            if reason == NO_MEMORY:
                self._context.memory.spend()

    def freeze(self) -> FrozenConnection | None:
        """Stop moving bytes, and return all that another process needs to continue, or None if the connection has
        ended. After this, nothing is read, written or closed until `FrozenConnection.thaw`."""
        context = self._context
        if self not in context.live:
            return None
        up, down, now = self.up, self.down, context.reactor.now
        quiet = self.quiet is not None and self.quiet[0] == self.moved
        state = ConnectionState(
            frontend=self._counters.frontend,
            target=self.target,
            age_s=now - self.since,
            adopted=self.adopted,
            kept_alive=self.kept_alive,
            quiet_s=now - self.quiet[1] if self.quiet is not None and quiet else 0.0,
            entry=self._entry,
            up=up.state(),
            down=down.state(),
        )
        descriptors = self._client, self._endpoint, *up.take_pipe(), *down.take_pipe()
        self._leave()
        # Closing is not enough: the kernel keeps reporting events of a socket that another process also has.
        context.reactor.remove(self._client)
        context.reactor.remove(self._endpoint)
        return FrozenConnection(context, self._counters, self._balancer, state, descriptors)

    def _leave(self) -> None:
        self._context.live.discard(self)
        self._context.adopted_open -= self.adopted
        self._counters.active -= 1
        self._balancer.closed(self.target)
        up, down = self.up, self.down
        up.stop()
        down.stop()
        # Connection and flows refer to each other. Break the cycle, so that they are freed without the garbage
        # collector.
        del up.reverse, down.reverse, self.up, self.down

    def _end(self, reason: str) -> None:
        context, up, down = self._context, self.up, self.down
        self._leave()
        if self.shared:
            # Otherwise the kernel would keep reporting events of these sockets, under numbers that are soon reused.
            context.reactor.remove(self._client)
            context.reactor.remove(self._endpoint)
        context.reactor.close(self._client)
        context.reactor.close(self._endpoint)
        context.budget.give(2, self._counters.share)
        if self._entry is not None:
            duration_s = context.reactor.now - self.since
            context.connection_log.add(
                self._entry.ended(reason, duration_s=duration_s, bytes_in=up.count, bytes_out=down.count)
            )


class FrozenConnection:
    """A connection that is stopped: its state, its descriptors, and their claim on the budget."""

    __slots__ = ("_balancer", "_context", "_counters", "descriptors", "state")

    def __init__(
        self,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        state: ConnectionState,
        descriptors: Sequence[int],
    ) -> None:
        """The caller has made the claims. For a connection of another process use `claim`."""
        self._context = context
        self._counters = counters
        self._balancer = balancer
        self.state = state
        self.descriptors = tuple(descriptors)

    @classmethod
    def claim(
        cls,
        context: Context,
        counters: FrontendCounters,
        balancer: Balancer,
        state: ConnectionState,
        descriptors: Sequence[int],
    ) -> FrozenConnection | None:
        """Claim the descriptors of another process's connection. Return None if the budget has no room for them. The
        frontend's share limits only new connections, so it is ignored here."""
        budget = context.budget
        if len(descriptors) != state.descriptors or len(descriptors) > budget.spare:
            return None
        claimed = cls(context, counters, balancer, state, descriptors)
        for _ in descriptors[2::2]:
            context.pipes.adopt()
        budget.take_back(2, counters.share)
        return claimed

    def close(self) -> None:
        """Close the descriptors and return the claims, without affecting the connection in the other process."""
        for descriptor in self.descriptors[:2]:
            os.close(descriptor)
        pipes = self.descriptors[2:]
        for at in range(0, len(pipes), 2):
            self._context.pipes.give(Pipe(*pipes[at : at + 2]), empty=False)
        self._context.budget.give(2, self._counters.share)

    def thaw(self) -> Connection | None:
        """Continue the connection. If this process has no room for it, reset both sides and return None."""
        context, state = self._context, self.state
        client, endpoint, *pipes = self.descriptors
        reactor, now = context.reactor, context.reactor.now
        opened = False
        try:
            reactor.add(client, _ignore)
            reactor.add(endpoint, _ignore)
            self._balancer.opened(state.target)
            opened = True
            connection = Connection(
                context,
                self._counters,
                self._balancer,
                client=client,
                endpoint=endpoint,
                target=state.target,
                since=now - state.age_s,
                entry=state.entry if context.tune.access_log else None,
            )
        except (OSError, MemoryError):
            reactor.remove(client)
            reactor.remove(endpoint)
            if opened:
                self._balancer.closed(state.target)
            self.abort()
            return None
        connection.shared, connection.kept_alive = True, state.kept_alive
        if state.adopted:
            connection.adopt()
        try:
            connection.up.go_on(state.up, pipes[:2] if state.up.piped else ())
            connection.down.go_on(state.down, pipes[-2:] if state.down.piped else ())
        except MemoryError:
            connection.abort(NO_MEMORY)
            return None
        if state.quiet_s:
            connection.quiet = connection.moved, now - state.quiet_s
        return connection

    def abort(self) -> None:
        """End the connection. Both sides get a reset."""
        for descriptor in self.descriptors[:2]:
            reset_on_close(descriptor)
        self.close()


def _ignore(what: int) -> None:
    """Do nothing. This handler is replaced by `Connection` before an event can occur."""
