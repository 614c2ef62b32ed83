"""Interface of the data plane, whether it runs in this process or in workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Protocol

from msgspec import Struct

from kubeproxy.dataplane.messages import Message, RestoreBindings
from kubeproxy.model import Address, FrontendName, Target
from kubeproxy.model import Protocol as Transport


class Counters(Struct, array_like=True):
    """Sums of one frontend since it was first served, over all processes that served it."""

    accepted: int = 0
    """Connections; UDP: sessions."""
    active: int = 0
    refused: int = 0
    """Connections that failed because every endpoint refused, or some did and the others were unreachable."""
    unreachable: int = 0
    """Connections that failed because no endpoint could be reached: its host or the route to it is gone."""
    silent: int = 0
    """Connections that failed because an endpoint was still silent when the last dial timeout was over."""
    no_endpoint: int = 0
    """Connections that failed because there was no endpoint."""
    unable: int = 0
    """Connections that failed because this host lacked a port, memory or a descriptor."""
    dial_retries: int = 0
    dropped: int = 0
    """UDP: datagrams that were not forwarded."""
    evicted: int = 0
    """UDP: sessions ended to make room for others."""
    affinity_entries: int = 0
    """Clients bound to an endpoint now."""
    bytes_in: int = 0
    """From clients to endpoints."""
    bytes_out: int = 0
    """From endpoints to clients."""
    looped: int = 0
    """Connections that failed because they had passed too many proxies; UDP: datagrams."""
    by_kernel: int = 0
    """Connections that the kernel has led straight to an endpoint; UDP: flows. The control process counts them, and
    what follows here."""
    kernel_open: int = 0
    """Those of them that are open."""
    kernel_bytes_in: int = 0
    """Bytes of their packets from clients to endpoints, with headers."""
    kernel_bytes_out: int = 0
    """The same from endpoints to clients."""

    @property
    def failed(self) -> int:
        """Connections without an endpoint's answer, for any reason."""
        return self.refused + self.unreachable + self.silent + self.no_endpoint + self.unable + self.looped


NOTHING = Counters()
"""Counters of a frontend without clients. Most frontends of a node have none, and all share this value."""

DIAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the dial time histogram; one more bucket takes the rest. From the time of a dial on the same host to
a little beyond the sum of the default dial timeouts."""


class WorkerStatus(Struct, frozen=True):
    """Status of one serving process. Sums are since its start."""

    pid: int
    number: int
    """Number of the worker, from 0."""
    began: float
    """Start time, Unix seconds."""
    connections: int
    """Open connections and dials in progress."""
    udp_sessions: int
    descriptors: int
    """Descriptors in use on the byte path."""
    descriptors_limit: int
    accept_paused: int
    """How often a client had to wait because all descriptors were in use."""
    lag_s: float
    """The longest turn of the loop within the last minute: how long a ready byte may have waited."""
    dials: tuple[int, ...]
    """Histogram of the time from accept to the endpoint's answer: one count for each of `DIAL_BUCKETS_S` and one for
    the rest, not cumulative."""
    dial_seconds: float
    """The sum of these times."""
    log_skipped: int = 0
    """Records of finished connections dropped because the connection log was full (see `DataPlane.ended`)."""
    memory_shortages: int = 0
    """Grows while there is no memory for more clients."""
    ports_exhausted: int = 0
    """Dials that failed because all of this host's ports towards the endpoint were in use."""
    looped: int = 0
    """Connections and datagrams that had passed too many proxies."""
    adopted: int = 0
    """Connections and UDP sessions that another instance has begun, and that have moved here."""
    adopted_open: int = 0
    """Those connections of them that are open."""


class EjectedEndpoint(Struct, frozen=True):
    """An endpoint that one serving process has ejected."""

    target: Target
    worker: int
    reason: str
    """The last failure: ``refused``, ``timeout``, ``unreachable``."""
    failures: int
    """Consecutive failures."""
    retry_in_s: float
    """Seconds until the next probe; 0: a probe is in progress, or starts with the next client."""
    for_s: float = 0.0
    """Seconds since it was ejected."""


PREVIEWS_MAX = 64
"""Endpoints listed by a `BalancePreview`, at most."""


class BalancePreview(Struct, frozen=True):
    """The endpoints that one serving process would try for a client's next connection."""

    worker: int
    order: tuple[Target, ...]
    """The endpoints in the order of dialing, the first `PREVIEWS_MAX` of them."""
    bound: Target | None = None
    """The endpoint that the client is bound to by session affinity; None: none."""


class Ended(Struct, frozen=True, array_like=True):
    """A finished connection of a client."""

    frontend: FrontendName
    protocol: Transport
    client: Target
    endpoint: Target | None
    """The endpoint that answered; None: none did."""
    attempts: int | None
    """Dials for this client; None: the kernel path, where a repeated first packet is a connection of its own."""
    began: float
    """Time of accept, Unix seconds; without a duration: time of the end."""
    dial_s: float | None
    """From accept to the endpoint's answer; None: none answered, or the kernel path."""
    duration_s: float | None
    """From accept to the end; None: not known (kernel path)."""
    bytes_in: int | None
    """Bytes from the client, whether or not the endpoint took them. Kernel path: of packets, with headers; None: not
    counted."""
    bytes_out: int | None
    """Bytes from the endpoint, whether or not the client took them. Kernel path: as above."""
    reason: str
    """``closed``: by both sides; ``reset by client``, ``reset by endpoint``; ``idle``: half-closed, and idle for too
    long; ``cut``: by this proxy's own shutdown. And without an endpoint: ``refused``, ``unreachable``, ``timeout``,
    ``no endpoint``, ``unable``, ``loop`` (see `Counters`). ``no memory``: this host had none left.

    On the kernel path: ``closed``; ``reset``, by either side; ``refused``; ``timeout``: no answer to the client;
    ``unfinished``: no answer to the endpoint's; ``idle``: without packets for as long as the kernel remembers it;
    ``deleted``: before that, as when the endpoint of a UDP flow goes."""
    path: str = "userspace"
    """``kernel``: the endpoint is the one to which the kernel has led the client, whether or not it answered."""


class DataPlaneReadings(Protocol):
    """What metrics and health read of a data plane."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """Return a snapshot of the counters, summed over all serving processes."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """Return the status of each serving process, by number."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """Return the endpoints that each serving process has ejected now."""

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """Return what is open to each endpoint, over all serving processes; frontends without clients are left out."""

    @property
    def restarts(self) -> int:
        """Return how often a serving process died and was replaced."""

    @property
    def problem(self) -> str | None:
        """Return a lasting problem, such as a worker that keeps dying. Return None if there is none."""


@dataclass(frozen=True, slots=True)
class Entrances:
    """Where workers take over connections of another instance. Whoever has it passes the sockets on, and closes it."""

    sockets: Sequence[socket] = ()
    """One to each worker."""
    workers: tuple[int, ...] = ()
    """The numbers of these workers."""
    count: int = 0
    """Workers among which UDP clients are divided; some may not be in service."""

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets:
            sock.close()


class DataPlane(DataPlaneReadings, Protocol):
    """A running data plane."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Apply messages in order and return the failures as texts, by frontend.

        All messages are in effect when it returns. A failure does not hinder the other messages. After a failed
        `Listen` a new frontend does not listen."""

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """Return the endpoints that each serving process would try for a client's next connection, from that port.

        The query changes nothing. The answer is empty for a frontend that is not served."""

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """Return the number of open connections, dials and UDP sessions to each of these addresses, without zeros."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Return the session affinity bindings of all frontends, for a new instance."""

    async def ended(self) -> Sequence[Ended]:
        """Return the connections finished since the last call, if `Tune.access_log` is on.

        Each serving process keeps a few thousand between calls; more are dropped and counted."""

    @property
    def open_connections(self) -> int:
        """Return the number of open connections and dials in progress, as far as known without a query."""

    async def retire(self) -> None:
        """Stop accepting everywhere: clients already queued are accepted, and open connections go on."""

    async def adopt(self) -> Entrances:
        """Let a worker of another instance send its connections to ours."""

    async def move(self, successor: str) -> tuple[int, int]:
        """Move the connections to the instance at a control socket, as far as it takes them.

        Return the numbers moved, and left. What begins later, or cannot move yet, follows while this process lives."""

    async def drain(self, grace_s: float) -> int:
        """Wait until the connections open now have ended, at most `grace_s` seconds, and return the number left.

        Accepting continues meanwhile, unless `retire` has ended it."""

    async def close(self) -> None:
        """Close every listener and connection."""


class PortReserver(Protocol):
    """Reserves ports by binding them, so that no other process gets them."""

    def reserve(self, protocol: Transport, address: Address, port: int, *, claim: bool = False) -> Reservation:
        """Bind without listening; port 0 lets the kernel choose. Raise OSError when the port is taken.

        A `claim` only keeps other programs from a port that netfilter redirects; it is never listened on."""

    def share(self, on: bool) -> None:
        """Whether another instance that shares, too, may hold the same claims.

        Holds for present and future claims. On during a takeover; otherwise claims are exclusive."""


class Reservation(Protocol):
    """A reserved port. Tests have reservations without sockets."""

    @property
    def port(self) -> int:
        """The port number."""

    def release(self) -> None:
        """Free the port."""
