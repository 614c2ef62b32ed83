"""The interface of the data plane, whether it runs in this process or in workers."""

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
    """The sums of one frontend since it was first served, over all processes that have served it."""

    accepted: int = 0
    """The number of connections; with UDP, of sessions."""
    active: int = 0
    refused: int = 0
    """Connections that failed because every endpoint refused, or because some refused and the others were
    unreachable."""
    unreachable: int = 0
    """Connections that failed because no endpoint could be reached: the host or the route was gone."""
    silent: int = 0
    """Connections that failed because an endpoint was still silent when the last dial timeout was over."""
    no_endpoint: int = 0
    """Connections that failed because there was no endpoint."""
    unable: int = 0
    """Connections that failed because this host lacked a port, memory or a descriptor."""
    dial_retries: int = 0
    dropped: int = 0
    """With UDP, datagrams that were not forwarded."""
    evicted: int = 0
    """With UDP, sessions that were ended to make room for others."""
    affinity_entries: int = 0
    """The number of clients that are bound to an endpoint now."""
    bytes_in: int = 0
    """Bytes from clients to endpoints."""
    bytes_out: int = 0
    """Bytes from endpoints to clients."""
    looped: int = 0
    """Connections that failed because they had passed too many proxies; with UDP, datagrams that had."""
    by_kernel: int = 0
    """Connections (with UDP, flows) that the kernel has led straight to an endpoint. The control process counts them,
    and the fields below."""
    kernel_open: int = 0
    """The number of these connections that are open."""
    kernel_bytes_in: int = 0
    """Bytes in their packets from clients to endpoints, with headers."""
    kernel_bytes_out: int = 0
    """Bytes in their packets from endpoints to clients, with headers."""

    @property
    def failed(self) -> int:
        """Return the number of connections that failed for any reason."""
        return self.refused + self.unreachable + self.silent + self.no_endpoint + self.unable + self.looped


NOTHING = Counters()
"""The counters of a frontend without clients. Most frontends of a node have none, and all of these share this value."""

DIAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The upper bounds of the histogram of dial times; one more bucket takes the rest. They reach from a dial on the same
host to a little beyond the sum of the default dial timeouts."""


class WorkerStatus(Struct, frozen=True):
    """The status of one serving process. Its sums are since the start of that process."""

    pid: int
    number: int
    """The number of the worker, from 0."""
    began: float
    """The start time in Unix seconds."""
    connections: int
    """Open connections and dials in progress."""
    udp_sessions: int
    descriptors: int
    """Descriptors in use on the byte path."""
    descriptors_limit: int
    accept_paused: int
    """How often a client had to wait because all descriptors were in use."""
    lag_s: float
    """The longest turn of the loop within the last minute. A ready byte may have waited that long."""
    dials: tuple[int, ...]
    """A histogram of the time from accept to the endpoint's answer. It has one count for each of `DIAL_BUCKETS_S` and
    one for the rest, not cumulative."""
    dial_seconds: float
    """The sum of these times."""
    log_skipped: int = 0
    """Records of finished connections dropped because the connection log was full (see `DataPlane.ended`)."""
    memory_shortages: int = 0
    """The number of shortages of memory. It grows while there is no memory for more clients."""
    ports_exhausted: int = 0
    """Dials that failed because all of this host's ports towards the endpoint were in use."""
    looped: int = 0
    """Connections and datagrams that had passed too many proxies."""
    adopted: int = 0
    """Connections and UDP sessions that another instance has begun and that have moved to this process."""
    adopted_open: int = 0
    """Those of the adopted connections that are open."""


class EjectedEndpoint(Struct, frozen=True):
    """An endpoint that one serving process has ejected."""

    target: Target
    worker: int
    reason: str
    """The last failure: ``refused``, ``timeout`` or ``unreachable``."""
    failures: int
    """Consecutive failures."""
    retry_in_s: float
    """Seconds until the next probe. With 0 a probe is in progress, or the next client is the probe."""
    for_s: float = 0.0
    """Seconds since the endpoint was ejected."""


PREVIEWS_MAX = 64
"""The largest number of endpoints in a `BalancePreview`."""


class BalancePreview(Struct, frozen=True):
    """The endpoints that one serving process would try for a client's next connection."""

    worker: int
    order: tuple[Target, ...]
    """The endpoints in the order of dialing, the first `PREVIEWS_MAX` of them."""
    bound: Target | None = None
    """The endpoint that the client is bound to by session affinity, or None."""


class Ended(Struct, frozen=True, array_like=True):
    """A finished connection of a client."""

    frontend: FrontendName
    protocol: Transport
    client: Target
    endpoint: Target | None
    """The endpoint that answered, or None."""
    attempts: int | None
    """The number of dials for this client. It is None on the kernel path, where a repeated first packet is a connection
    of its own."""
    began: float
    """The time of accept in Unix seconds. Without a duration it is the time of the end."""
    dial_s: float | None
    """Seconds from accept to the endpoint's answer. None if no endpoint answered, and on the kernel path."""
    duration_s: float | None
    """Seconds from accept to the end. None if that is not known, on the kernel path."""
    bytes_in: int | None
    """Bytes from the client, whether or not the endpoint took them. On the kernel path these are the bytes of packets
    with headers, or None if they are not counted."""
    bytes_out: int | None
    """Bytes from the endpoint, whether or not the client took them. For the kernel path see `bytes_in`."""
    reason: str
    """``closed``: by both sides; ``reset by client``, ``reset by endpoint``; ``idle``: half-closed, and idle for too
    long; ``cut``: by this proxy's own shutdown. Without an endpoint it is ``refused``, ``unreachable``, ``timeout``,
    ``no endpoint``, ``unable``, ``loop`` (see `Counters`), or ``no memory``: this host had none left.

    On the kernel path it is ``closed``; ``reset``: by either side; ``refused``; ``timeout``: the client got no answer;
    ``unfinished``: the endpoint's answer got no answer; ``idle``: no packets for as long as the kernel remembers it;
    ``deleted``: before that, as when the endpoint of a UDP flow goes.
    """
    path: str = "userspace"
    """``kernel`` on the kernel path. Then `endpoint` is the endpoint to which the kernel has led the client, whether or
    not it answered."""


class DataPlaneReadings(Protocol):
    """The values of a data plane that metrics and health read."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """Return a snapshot of the counters, summed over all serving processes."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """Return the status of each serving process, by number."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """Return the endpoints that each serving process has ejected now."""

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """Return the number of open connections and sessions to each endpoint, over all serving processes. Frontends
        without clients are left out."""

    @property
    def restarts(self) -> int:
        """Return how often a serving process died and was replaced."""

    @property
    def problem(self) -> str | None:
        """Return a lasting problem, such as a worker that keeps dying. Return None if there is none."""


@dataclass(frozen=True, slots=True)
class Entrances:
    """The sockets by which workers take over connections of another instance. The owner of this object passes the
    sockets on, and closes it."""

    sockets: Sequence[socket] = ()
    """The sockets, one to each worker."""
    workers: tuple[int, ...] = ()
    """The numbers of these workers."""
    count: int = 0
    """The number of workers among which UDP clients are divided. Some of them may not be in service."""

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets:
            sock.close()


class DataPlane(DataPlaneReadings, Protocol):
    """A running data plane."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Apply messages in order, and return the failures as texts, by frontend. All messages are in effect when this
        returns. A failure does not affect the other messages. After a failed `Listen` a new frontend does not
        listen."""

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """Return the endpoints that each serving process would try for the next connection of a client from that port.
        The query changes nothing. The answer is empty for a frontend that is not served."""

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """Return the number of open connections, dials and UDP sessions to each of these addresses, without zeros."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Return the session affinity bindings of all frontends, for a new instance."""

    async def ended(self) -> Sequence[Ended]:
        """Return the connections finished since the last call, if `Tune.access_log` is on. Each serving process keeps a
        few thousand between calls. Further ones are dropped and counted."""

    @property
    def open_connections(self) -> int:
        """Return the number of open connections and dials in progress, as far as known without a query."""

    async def retire(self) -> None:
        """Stop accepting everywhere. Clients that are queued already are accepted, and open connections continue."""

    async def adopt(self) -> Entrances:
        """Let a worker of another instance send its connections to ours."""

    async def move(self, successor: str) -> tuple[int, int]:
        """Move the connections to the instance at a control socket, as far as that instance takes them. Return the
        numbers moved, and left. Connections that begin later, or cannot move yet, follow while this process lives."""

    async def drain(self, grace_s: float) -> int:
        """Wait until the connections that are open now have ended, at most `grace_s` seconds, and return the number
        left. Accepting continues in the meantime, unless `retire` has ended it."""

    async def close(self) -> None:
        """Close every listener and connection."""


class PortReserver(Protocol):
    """Reserves ports by binding them, so that no other process gets them."""

    def reserve(self, protocol: Transport, address: Address, port: int, *, claim: bool = False) -> Reservation:
        """Bind a port without listening. With port 0 the kernel chooses. Raise OSError when the port is taken. A
        `claim` only keeps other programs from a port that netfilter redirects, and is never listened on."""

    def share(self, on: bool) -> None:
        """Set whether another instance, which shares as well, may hold the same claims. This applies to present and
        future claims. It is on during a takeover. Otherwise claims are exclusive."""


class Reservation(Protocol):
    """A reserved port. Tests have reservations without sockets."""

    @property
    def port(self) -> int:
        """The port number."""

    def release(self) -> None:
        """Free the port."""
