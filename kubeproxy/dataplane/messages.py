"""Messages from the control plane to the data plane, whether it runs in this process or in workers. They alone say what
the data plane serves, and how. (Only its end has calls of its own: `DataPlane.retire`, `move`, `drain` and `close`.)
Each message describes a wanted state, so it may be repeated.

The messages are msgspec structs, and not dataclasses, because they are sent to workers as they are.
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
    """Whether this is a shared listener, which serves the frontends of `Join` messages and has no clients of its own.
    The name is then only an identifier."""
    pinned: bool = False
    """Whether clients of a shared listener always reach the same worker, as session affinity needs."""


class Join(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend on a shared listener: its clients are those whose original destination is one of these.

    Each destination belongs to at most one frontend of a listener. A later message replaces the destinations.
    """

    frontend: FrontendName
    listener: FrontendName
    destinations: tuple[Destination, ...]


NOT_OPEN: Final = "cannot listen: the shared listener is not open"
"""The failure of a `Join` to a listener that is not open."""


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
    """The endpoints' columns in the table in which workers count open connections together (`balancing.open_counts`).
    The control plane leaves this empty; the worker pool sets it."""
    staying: tuple[Target, ...] = ()
    """The endpoints that get no new clients but keep their UDP sessions."""


class MarkEndpoint(Struct, frozen=True, tag=True, array_like=True):
    """Record that an endpoint of a frontend has failed clients on the kernel path, or works again."""

    frontend: FrontendName
    target: Target
    reason: str | None
    """How the endpoint failed, or None if it works again."""


class Retire(Struct, frozen=True, tag=True, array_like=True):
    """Stop serving a frontend. Clients that are already queued are accepted, and then the listener is closed. Open
    connections continue."""

    frontend: FrontendName


class Tune(Struct, frozen=True, tag=True, array_like=True):
    """The settings of the byte path. They can be changed at run time."""

    dial_steps_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """The timeouts of the steps of a dial in seconds. After each step the next endpoint is tried (kube-proxy's
    EndpointDialTimeouts)."""
    keepalive_s: int = 15
    """The idle time and the interval of TCP keepalive on both sides, in seconds. The default is that of Go and so of
    kube-proxy."""
    udp_idle_s: float = 60.0
    """The idle timeout of a UDP session in seconds. The default is twice conntrack's timeout for an unanswered
    datagram, and half of its timeout for a stream. So slow answers are not lost, as they were with kube-proxy's 250
    ms."""
    half_closed_idle_s: float = 3600.0
    """The idle timeout in seconds of a half-closed connection, in which one side has sent FIN and the other side
    sends nothing. It matters only for a live peer that never closes, because keepalive finds dead peers earlier. The
    default is the time for which connection tracking keeps such a connection under kube-proxy's default
    (tcpCloseWaitTimeout)."""
    unanswered_idle_s: float = 300.0
    """The same timeout if the endpoint has not sent a single byte. The default is long enough for a slow answer, and
    short enough that a loop or a dead endpoint does not hold descriptors for long."""
    orphan_grace_s: float = 60.0
    """How many seconds an orphaned worker serves if no new owner is found."""
    shutdown_grace_s: float = 10.0
    """How many seconds open connections get to end when a worker shuts down."""
    access_log: bool = False
    """Whether finished connections are recorded for the access log."""
    udp_sessions_max: int = 16_384
    """The largest number of UDP sessions of all frontends together. Beyond that number the one that was idle longest is
    evicted."""


class Binding(NamedTuple):
    """The binding of a client to an endpoint by session affinity."""

    client: str
    """The client's address."""
    target: Target
    age_s: float
    """Seconds since the client's last connection. It is not a time, because other processes may have other clocks."""


class RestoreBindings(Struct, frozen=True, tag=True, array_like=True):
    """Add affinity bindings from another process to a frontend, the client seen longest ago first. Clients that already
    have a binding keep it. Bindings to endpoints that the frontend does not have are dropped."""

    frontend: FrontendName
    bindings: tuple[Binding, ...]


Message = Listen | Join | SetEndpoints | MarkEndpoint | Retire | Tune | RestoreBindings
