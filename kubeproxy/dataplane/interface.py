"""The interface of the data plane. It is the same for the data plane in this process and in workers."""

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
    """The counters of one frontend since it was first served, summed over all processes that have served it."""

    accepted: int = 0
    """The number of connections, or of UDP sessions."""
    active: int = 0
    refused: int = 0
    """Connections that failed because every endpoint refused, or some refused and the others were unreachable."""
    unreachable: int = 0
    """Connections that failed because no endpoint could be reached: its host or the route to it was gone."""
    silent: int = 0
    """Connections that failed because an endpoint had still not answered when the last dial timeout was over."""
    no_endpoint: int = 0
    """Connections that failed because the frontend had no endpoint."""
    unable: int = 0
    """Connections that failed because this host had no local port, memory or descriptor left."""
    dial_retries: int = 0
    dropped: int = 0
    """UDP datagrams that were not forwarded."""
    evicted: int = 0
    """UDP sessions that were ended to make room for others."""
    affinity_entries: int = 0
    """The number of clients bound to an endpoint now."""
    bytes_in: int = 0
    """Bytes from clients to endpoints."""
    bytes_out: int = 0
    """Bytes from endpoints to clients."""
    looped: int = 0
    """Connections and datagrams that were refused because they had passed through too many proxies."""
    by_kernel: int = 0
    """Connections (or UDP flows) that the kernel has sent straight to an endpoint. This field and those below are
    counted by the control process, not by workers."""
    kernel_open: int = 0
    """How many of the kernel's connections are open."""
    kernel_bytes_in: int = 0
    """The bytes of the kernel's connections from clients to endpoints, with packet headers."""
    kernel_bytes_out: int = 0
    """The bytes of the kernel's connections from endpoints to clients, with packet headers."""

    @property
    def failed(self) -> int:
        """Return the number of failed connections."""
        return self.refused + self.unreachable + self.silent + self.no_endpoint + self.unable + self.looped


NOTHING = Counters()
"""The counters of a frontend without clients. Most frontends of a node have no clients, and share this value."""

DIAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The upper bounds of the buckets for dial times, in seconds; one more bucket has the rest. They range from a dial on
the same host to a little more than the sum of the default dial timeouts."""


class WorkerStatus(Struct, frozen=True):
    """The status of one serving process. Sums are since the start of that process."""

    pid: int
    number: int
    """The worker's number, starting at 0."""
    began: float
    """The Unix time at which the process started."""
    connections: int
    """The number of open connections and dials in progress."""
    udp_sessions: int
    descriptors: int
    """The number of descriptors used for clients."""
    descriptors_limit: int
    accept_paused: int
    """How often accepting was paused because all descriptors were in use."""
    lag_s: float
    """The longest turn of the event loop within the last minute, in seconds. A byte may have waited this long."""
    dials: tuple[int, ...]
    """A histogram of the time from accept to the endpoint's answer, not cumulative: a count for each of
    `DIAL_BUCKETS_S`, and one for the rest."""
    dial_seconds: float
    """The sum of the times in `dials`, in seconds."""
    log_skipped: int = 0
    """How many records of finished connections were dropped because the connection log was full (see
    `DataPlane.ended`)."""
    memory_shortages: int = 0
    """The number of memory shortages. It grows as long as there is no memory for more clients."""
    ports_exhausted: int = 0
    """How many dials failed because all local ports towards the endpoint were in use."""
    looped: int = 0
    """How many connections and datagrams were refused because they had passed through too many proxies."""
    adopted: int = 0
    """How many connections and UDP sessions of another instance have moved to this process."""
    adopted_open: int = 0
    """How many of the adopted connections are open."""


class EjectedEndpoint(Struct, frozen=True):
    """An endpoint that a serving process has ejected."""

    target: Target
    worker: int
    reason: str
    """The last failure: ``refused``, ``timeout`` or ``unreachable``."""
    failures: int
    """The number of failures in a row."""
    retry_in_s: float
    """Seconds until the next probe. It is 0 if a probe is in progress, or if the next client serves as the probe."""
    for_s: float = 0.0
    """Seconds since the endpoint was ejected."""


PREVIEWS_MAX = 64
"""The largest number of endpoints in a `BalancePreview`."""


class BalancePreview(Struct, frozen=True):
    """The endpoints that one serving process would try for a client's next connection."""

    worker: int
    order: tuple[Target, ...]
    """The endpoints in the order in which they would be dialed, at most `PREVIEWS_MAX`."""
    bound: Target | None = None
    """The endpoint to which session affinity binds the client, or None."""


class Ended(Struct, frozen=True, array_like=True):
    """A client's connection that has ended."""

    frontend: FrontendName
    protocol: Transport
    client: Target
    endpoint: Target | None
    """The endpoint that answered, or None. For the kernel path see `path`."""
    attempts: int | None
    """The number of dials for this client. It is None on the kernel path, where a repeated first packet counts as a new
    connection."""
    began: float
    """The Unix time at which the client was accepted. If `duration_s` is None, it is the time of the end."""
    dial_s: float | None
    """The seconds from accept to the endpoint's answer. It is None if no endpoint answered, and on the kernel path."""
    duration_s: float | None
    """The seconds from accept to the end. It can be None (unknown) on the kernel path."""
    bytes_in: int | None
    """The bytes from the client, whether or not they reached the endpoint. On the kernel path the bytes include packet
    headers, and the value is None if bytes are not counted."""
    bytes_out: int | None
    """The bytes from the endpoint, whether or not they reached the client. For the kernel path see `bytes_in`."""
    reason: str
    """Why the connection ended: ``closed`` by both sides; ``reset by client``; ``reset by endpoint``; ``idle``:
    half-closed, and idle for too long; ``cut`` by the shutdown of this proxy. Without an endpoint: ``refused``,
    ``unreachable``, ``timeout``, ``no endpoint``, ``unable``, ``loop`` (see `Counters`), or ``no memory`` on this host.

    On the kernel path: ``closed``; ``reset`` by either side; ``refused``; ``timeout``: the client got no answer;
    ``unfinished``: the client did not complete the handshake; ``idle``: the conntrack entry expired; ``deleted``: the
    entry was deleted before that, for example because the endpoint of a UDP flow is gone.
    """
    path: str = "userspace"
    """The data path: ``userspace`` or ``kernel``. For ``kernel``, `endpoint` is the one to which the kernel sent the
    client, whether or not it answered."""


class DataPlaneReadings(Protocol):
    """The readings of a data plane for metrics and health."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """Return the counters by frontend, summed over all serving processes."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """Return the status of each serving process, ordered by number."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """Return the endpoints that each serving process has ejected, by frontend."""

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """Return the number of open connections and sessions by frontend and endpoint, summed over all serving
        processes. Frontends without clients are left out."""

    @property
    def restarts(self) -> int:
        """Return how often a serving process has died and was replaced."""

    @property
    def problem(self) -> str | None:
        """Return a text about a lasting problem, such as a worker that keeps dying, or None."""


@dataclass(frozen=True, slots=True)
class Entrances:
    """The sockets through which our workers take over connections of another instance. The owner of this object passes
    the sockets on and closes the object."""

    sockets: Sequence[socket] = ()
    """The sockets, one for each worker."""
    workers: tuple[int, ...] = ()
    """The numbers of the workers, in the order of `sockets`."""
    count: int = 0
    """The number of workers among which UDP clients are distributed. Some of them may not be running."""

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets:
            sock.close()


class DataPlane(DataPlaneReadings, Protocol):
    """A running data plane."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Apply messages in order. Return the failures as texts, by frontend. When this returns, all messages are in
        effect. A failed message does not affect the others. A new frontend whose `Listen` failed does not listen."""

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """Return the endpoints that each serving process would try for the next connection of a client from this
        address and port. The query changes nothing. The result is empty if the frontend is not served."""

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """Return the number of open connections, dials and UDP sessions to each of these addresses. Addresses without
        any are left out."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Return the session affinity bindings of all frontends, for a new instance."""

    async def ended(self) -> Sequence[Ended]:
        """Return the connections that have ended since the last call, if `Tune.access_log` is on. Each serving process
        keeps a few thousand between two calls. Further ones are dropped and counted."""

    @property
    def open_connections(self) -> int:
        """Return the number of open connections and dials in progress as last reported, without asking the workers."""

    async def retire(self) -> None:
        """Stop accepting on all frontends. Clients that are already queued are accepted, and open connections
        continue."""

    async def adopt(self) -> Entrances:
        """Return sockets through which workers of another instance can send connections to ours."""

    async def move(self, successor: str) -> tuple[int, int]:
        """Move connections to the instance with this control socket, as far as it accepts them. Return how many have
        moved, and how many are left. Connections that begin later, or cannot move yet, follow while this process
        lives."""

    async def drain(self, grace_s: float) -> int:
        """Wait until the connections that are open now have ended, for at most `grace_s` seconds. Return how many are
        left. Meanwhile new clients are still accepted, unless `retire` was called."""

    async def close(self) -> None:
        """Close every listener and connection."""


class PortReserver(Protocol):
    """Reserves ports by binding them, so that no other process can use them."""

    def reserve(self, protocol: Transport, address: Address, port: int, *, claim: bool = False) -> Reservation:
        """Bind a port without listening. With port 0 the kernel chooses the port. Raise OSError if the port is in use.
        A `claim` is never listened on; it only keeps other programs from a port that netfilter redirects."""

    def share(self, on: bool) -> None:
        """Set whether another instance that also shares may reserve the same claims. This applies to present and future
        claims. Sharing is on only during a takeover."""


class Reservation(Protocol):
    """A reserved port. Tests use implementations without sockets."""

    @property
    def port(self) -> int:
        """Return the port number."""

    def release(self) -> None:
        """Free the port."""
