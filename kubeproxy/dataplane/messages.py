"""The only things that cross from the control plane to the data plane: small, frozen, and the same whether the data
plane runs in this process or in others. Each states a wanted condition, so repeating one is harmless.

They are msgspec's structs rather than dataclasses, because those that cross to another process go as they are."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from kubeproxy.model import Address, FrontendName, Protocol, Target


class Listen(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend on a port that the control plane has reserved. Answered by an error text or None."""

    frontend: FrontendName
    protocol: Protocol
    address: Address
    port: int


class SetEndpoints(Struct, frozen=True, tag=True, array_like=True):
    """The endpoints of a frontend, and how long a client stays with one (None: no affinity). Running connections to
    endpoints that are not named any more go on."""

    frontend: FrontendName
    endpoints: tuple[Target, ...]
    affinity_timeout_s: int | None = None
    preserve: frozenset[Target] = frozenset()
    """Those that are dialed from the client's own address."""


class Retire(Struct, frozen=True, tag=True, array_like=True):
    """Serve a frontend no more: what already waits to be accepted is still taken, then the listener closes. Running
    connections go on."""

    frontend: FrontendName


class Tune(Struct, frozen=True, tag=True, array_like=True):
    """Settings of the byte path that may change while it runs."""

    dial_steps_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """How long each attempt has before the next endpoint is tried (kube-proxy's EndpointDialTimeouts)."""
    keepalive_s: int = 15
    """TCP keepalive idle time and interval on both legs (Go's default, and so kube-proxy's)."""
    udp_idle_s: float = 60.0
    """How long a UDP session without datagrams lasts: twice conntrack's timeout for a lone datagram, half of that for
    a stream, so that a slow answer is never lost (kube-proxy's 250 ms lost it)."""
    half_closed_idle_s: float = 3600.0
    """How long a connection of which one side has ended may stay without a byte from the other. What TCP's keepalive
    finds is ended before; this is for a peer that lives and has forgotten. As long as connection tracking keeps such a
    connection by kube-proxy's default (tcpCloseWaitTimeout)."""
    unanswered_idle_s: float = 300.0
    """The same, at most, where the client has ended and the endpoint has not sent a single byte: so much is enough for
    an answer that takes long, and too little for a loop or a dead endpoint to hold descriptors by."""
    orphan_grace_s: float = 60.0
    """How long a worker goes on when the process that tells it what to do has died and no other comes."""
    shutdown_grace_s: float = 10.0
    """How long connections may take to end when a worker is told to stop, or has lost everybody who could tell it."""
    access_log: bool = False
    """Whether to remember each connection that has ended, to be told of."""
    udp_sessions_max: int = 16_384
    """UDP sessions at once, over all frontends; beyond it the idlest one goes."""


class Binding(NamedTuple):
    """A client that stays with an endpoint."""

    client: str
    """The text of its address."""
    target: Target
    age_s: float
    """Seconds since its last connection. Never a time: other processes may have other clocks."""


class RestoreBindings(Struct, frozen=True, tag=True, array_like=True):
    """What another process knew of a frontend's clients, the longest unseen first: those that are not known here stay
    with the same endpoints, as far as these are the frontend's."""

    frontend: FrontendName
    bindings: tuple[Binding, ...]


Message = Listen | SetEndpoints | Retire | Tune | RestoreBindings
