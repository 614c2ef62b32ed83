"""Messages from the control plane to the data plane.

Nothing else controls it, whether it runs in this process or in workers. Each message states a wanted condition, so
repeating one is harmless. They are msgspec's structs rather than dataclasses because workers get them as they are."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from kubeproxy.model import ROUND_ROBIN, Address, Balancing, FrontendName, Protocol, Target


class Listen(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend on a reserved port."""

    frontend: FrontendName
    protocol: Protocol
    address: Address
    port: int


class SetEndpoints(Struct, frozen=True, tag=True, array_like=True):
    """Replace a frontend's endpoints, affinity timeout (None: no affinity) and way of spreading clients.

    Open connections to endpoints that are not listed any more go on."""

    frontend: FrontendName
    endpoints: tuple[Target, ...]
    affinity_timeout_s: int | None = None
    preserve: frozenset[Target] = frozenset()
    """Endpoints that are dialed from the client's own address."""
    balancing: Balancing = ROUND_ROBIN
    columns: tuple[int, ...] = ()
    """Where workers count together what is open to each endpoint (`balancing.open_counts`). The control plane leaves it
    empty."""


class MarkEndpoint(Struct, frozen=True, tag=True, array_like=True):
    """An endpoint of a frontend has failed clients on the kernel path, or answers again."""

    frontend: FrontendName
    target: Target
    reason: str | None
    """How it failed; None: it answers."""


class Retire(Struct, frozen=True, tag=True, array_like=True):
    """Stop serving a frontend: accept the clients already queued, then close the listener.

    Open connections go on."""

    frontend: FrontendName


class Tune(Struct, frozen=True, tag=True, array_like=True):
    """Settings of the byte path, changeable at run time."""

    dial_steps_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """Timeouts of the dial's steps; after each, the next endpoint is tried (kube-proxy's EndpointDialTimeouts)."""
    keepalive_s: int = 15
    """TCP keepalive idle time and interval on both legs (Go's default, and so kube-proxy's)."""
    udp_idle_s: float = 60.0
    """Idle timeout of a UDP session: twice conntrack's timeout for a lone datagram, half of that for a stream, so that
    a slow answer is never lost (kube-proxy's 250 ms lost it)."""
    half_closed_idle_s: float = 3600.0
    """Idle timeout of a half-closed connection: one side has sent FIN, the other sends nothing. TCP keepalive finds
    dead peers before; this is for a live peer that never closes. As long as connection tracking keeps such a connection
    by kube-proxy's default (tcpCloseWaitTimeout)."""
    unanswered_idle_s: float = 300.0
    """The limit of that timeout where the client has sent FIN and the endpoint not a single byte: long enough for a
    slow answer, and short enough that a loop or a dead endpoint does not hold descriptors for long."""
    orphan_grace_s: float = 60.0
    """How long an orphaned worker serves while no new owner connects."""
    shutdown_grace_s: float = 10.0
    """How long open connections may take to end when a worker shuts down."""
    access_log: bool = False
    """Whether to record each finished connection for the access log."""
    udp_sessions_max: int = 16_384
    """UDP sessions at once, over all frontends; beyond it the idlest one is evicted."""


class Binding(NamedTuple):
    """A client bound to an endpoint by session affinity."""

    client: str
    """The client's address."""
    target: Target
    age_s: float
    """Seconds since the client's last connection. Not a time: other processes may have other clocks."""


class RestoreBindings(Struct, frozen=True, tag=True, array_like=True):
    """Add another process's affinity bindings of a frontend, the least recently seen client first.

    Clients that are bound already keep their endpoint, and bindings to other than the frontend's endpoints are dropped.
    """

    frontend: FrontendName
    bindings: tuple[Binding, ...]


Message = Listen | SetEndpoints | MarkEndpoint | Retire | Tune | RestoreBindings
