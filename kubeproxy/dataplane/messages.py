"""Messages from the control plane to the data plane. Nothing else controls the data plane, whether it runs in this
process or in workers. Each message states a wanted condition, so repeating one is harmless.

They are msgspec's structs and not dataclasses, because they are sent to workers as they are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from kubeproxy.model import ROUND_ROBIN, Address, Balancing, Destination, FrontendName, Protocol, Target


class Listen(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend on a reserved port."""

    frontend: FrontendName
    protocol: Protocol
    address: Address
    port: int
    shared: bool = False
    """Whether the listener serves the frontends that `Join` it, instead of one of its own. Its name then only
    distinguishes it from others."""
    pinned: bool = False
    """Whether clients of a shared listener meet the same worker each time, as session affinity needs."""


class Join(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend at a shared listener, to each client that asked for one of these destinations.

    Only one of the frontends of a listener may have a destination. A later message replaces the destinations.
    """

    frontend: FrontendName
    listener: FrontendName
    destinations: tuple[Destination, ...]


NOT_OPEN: Final = "cannot listen: the shared listener is not open"
"""The failure of a `Join` whose listener nobody has opened."""


class SetEndpoints(Struct, frozen=True, tag=True, array_like=True):
    """Replace a frontend's endpoints, its affinity timeout (None without affinity) and its scheduler. Open connections
    to endpoints that are no longer listed continue."""

    frontend: FrontendName
    endpoints: tuple[Target, ...]
    affinity_timeout_s: int | None = None
    preserve: frozenset[Target] = frozenset()
    """The endpoints that are dialed from the client's own address."""
    balancing: Balancing = ROUND_ROBIN
    columns: tuple[int, ...] = ()
    """Where workers count together what is open to each endpoint (`balancing.open_counts`). The control plane leaves
    this field empty."""
    staying: tuple[Target, ...] = ()
    """Endpoints that get no new clients, but keep their UDP sessions."""


class MarkEndpoint(Struct, frozen=True, tag=True, array_like=True):
    """An endpoint of a frontend has failed clients on the kernel path, or answers again."""

    frontend: FrontendName
    target: Target
    reason: str | None
    """How the endpoint failed, or None if it answers."""


class Retire(Struct, frozen=True, tag=True, array_like=True):
    """Stop serving a frontend: accept the clients already queued, then close the listener. Open connections
    continue."""

    frontend: FrontendName


class Tune(Struct, frozen=True, tag=True, array_like=True):
    """Settings of the byte path, which can be changed at run time."""

    dial_steps_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """The timeouts of the dial's steps. After each of them the next endpoint is tried (kube-proxy's
    EndpointDialTimeouts)."""
    keepalive_s: int = 15
    """The idle time and interval of TCP keepalive towards both sides. The default is Go's, and so kube-proxy's."""
    udp_idle_s: float = 60.0
    """The idle timeout of a UDP session: twice conntrack's timeout for a lone datagram, and half of the timeout for a
    stream. So a slow answer is never lost, as it was with kube-proxy's 250 ms."""
    half_closed_idle_s: float = 3600.0
    """The idle timeout of a half-closed connection, in which one side has sent FIN and the other side sends nothing.
    TCP keepalive finds dead peers earlier, so this is for a live peer that never closes. It is as long as connection
    tracking keeps such a connection by kube-proxy's default (tcpCloseWaitTimeout)."""
    unanswered_idle_s: float = 300.0
    """The same timeout for a connection whose client has sent FIN and whose endpoint has not sent a byte. It is long
    enough for a slow answer, and short enough that a loop or a dead endpoint does not hold descriptors for long."""
    orphan_grace_s: float = 60.0
    """How long an orphaned worker serves while no new owner connects."""
    shutdown_grace_s: float = 10.0
    """How long open connections may take to end when a worker shuts down."""
    access_log: bool = False
    """Whether each finished connection is recorded for the access log."""
    udp_sessions_max: int = 16_384
    """The largest number of UDP sessions, over all frontends. Beyond it the idlest one is evicted."""


class Binding(NamedTuple):
    """A client bound to an endpoint by session affinity."""

    client: str
    """The client's address."""
    target: Target
    age_s: float
    """Seconds since the client's last connection. It is an age and not a time, because other processes may have other
    clocks."""


class RestoreBindings(Struct, frozen=True, tag=True, array_like=True):
    """Add another process's affinity bindings of a frontend, the client seen longest ago first. Clients that are bound
    already keep their endpoint. Bindings to endpoints that the frontend does not have are dropped."""

    frontend: FrontendName
    bindings: tuple[Binding, ...]


Message = Listen | Join | SetEndpoints | MarkEndpoint | Retire | Tune | RestoreBindings
