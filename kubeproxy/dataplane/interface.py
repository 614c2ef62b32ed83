"""What the control plane can ask of the data plane, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from kubeproxy.dataplane.messages import Message, RestoreBindings
from kubeproxy.model import Address, FrontendName, Target
from kubeproxy.model import Protocol as Transport


class Counters(Struct, array_like=True):
    """Plain sums of one frontend since it was first listened for, over everything that serves or has served it."""

    accepted: int = 0
    """Connections; UDP: sessions."""
    active: int = 0
    refused: int = 0
    """Connections that failed because every endpoint refused or was unreachable."""
    silent: int = 0
    """Connections that failed because an endpoint was still silent when the ladder of dials ended."""
    no_endpoint: int = 0
    """Connections that failed because there was no endpoint."""
    unable: int = 0
    """Connections that failed for want of something of this host's: a port, memory, a descriptor."""
    dial_retries: int = 0
    dropped: int = 0
    """UDP: datagrams that could not be passed on."""
    evicted: int = 0
    """UDP: sessions that made room for others."""
    affinity_entries: int = 0
    """Clients bound to an endpoint now."""
    bytes_in: int = 0
    """From clients to endpoints."""
    bytes_out: int = 0
    """From endpoints to clients."""
    looped: int = 0
    """Connections that failed because they had come through too many proxies; UDP: datagrams."""

    @property
    def failed(self) -> int:
        """Connections for which no endpoint answered, whatever the reason."""
        return self.refused + self.silent + self.no_endpoint + self.unable + self.looped


NOTHING = Counters()
"""Of a frontend that nobody has come to. Most are so on any one node, and cost nothing to tell."""

DIAL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the dial time histogram; one more bucket takes the rest. From what a dial on the same host takes to
a little beyond the default ladder's end."""


class WorkerStatus(Struct, frozen=True):
    """How one process that serves is doing. Sums are since it began."""

    pid: int
    number: int
    """Its place among the workers, from 0."""
    began: float
    """Unix seconds."""
    connections: int
    """Open now, those being dialed for included."""
    udp_sessions: int
    descriptors: int
    """In use on the byte path."""
    descriptors_limit: int
    accept_paused: int
    """How often a client had to wait for want of descriptors."""
    lag_s: float
    """The longest turn of its loop within the last minute: how long a ready byte may have waited."""
    dials: tuple[int, ...]
    """Connections by the time from accept to the endpoint's answer: one number for each of `DIAL_BUCKETS_S` and one
    for the rest, not cumulative."""
    dial_seconds: float
    """The sum of these times."""
    log_skipped: int = 0
    """Connections whose end nobody asked for in time (see `DataPlane.ended`)."""
    memory_shortages: int = 0
    """Grows while there is no memory for more clients."""
    ports_exhausted: int = 0
    """Dials that failed because all of this host's ports towards the endpoint were in use."""
    looped: int = 0
    """Connections and datagrams that had come through too many proxies."""


class EjectedEndpoint(Struct, frozen=True):
    """An endpoint that is passed over, as one serving process sees it."""

    target: Target
    worker: int
    reason: str
    """``refused``, ``timeout``, ``unreachable``: what its last failure was."""
    failures: int
    """One after the other."""
    retry_in_s: float
    """Seconds until it may be tried again; 0: it is being tried, or will be when the next client comes."""


PREVIEWS_MAX = 64
"""How many endpoints a `BalancePreview` tells of."""


class BalancePreview(Struct, frozen=True):
    """What one serving process would do with a client's next connection."""

    worker: int
    order: tuple[Target, ...]
    """The endpoints as they would be tried now, the first `PREVIEWS_MAX` of them."""
    bound: Target | None = None
    """The endpoint that the client stays with, by affinity; None: none."""


class Ended(Struct, frozen=True, array_like=True):
    """What became of one client's connection."""

    frontend: FrontendName
    protocol: Transport
    client: Target
    endpoint: Target | None
    """Who answered; None: nobody."""
    attempts: int
    """How often an endpoint was dialed for it."""
    began: float
    """When it was accepted, in Unix seconds."""
    dial_s: float | None
    """From there to the endpoint's answer; None: there was none."""
    duration_s: float
    """From there to the end."""
    bytes_in: int
    """From the client, whether or not the endpoint took them."""
    bytes_out: int
    """From the endpoint, whether or not the client took them."""
    reason: str
    """``closed``: both sides had said all; ``reset by client``, ``reset by endpoint``; ``idle``: half-closed, and
    silent for too long; ``cut``: by this proxy, on its own way out. And without an endpoint: ``refused``, ``timeout``,
    ``no endpoint``, ``unable``, ``loop`` (see `Counters`). ``no memory``: this host had none left."""


class DataPlane(Protocol):
    """A running data plane."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Hand over messages in order; back when all are in effect. What could not be done is returned, by frontend,
        as a text that says what was seen; the other messages are in effect all the same. A frontend that did not
        listen before and whose Listen could not be done does not listen."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """A snapshot, summed over everything that serves."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """One for each process that serves now, by number."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """The endpoints that are passed over now."""

    async def previews(self, frontend: FrontendName, client: Address) -> Sequence[BalancePreview]:
        """What each process that serves a frontend would do with the next connection from a client's address. Asking
        changes nothing; nobody answers for a frontend that is not served."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """The clients that stay with an endpoint now, by session affinity: for a process that follows this one."""

    async def ended(self) -> Sequence[Ended]:
        """The connections that have ended since this was last asked, if `Tune.access_log` is on: of each serving
        process the first few thousand."""

    @property
    def restarts(self) -> int:
        """How often a process that served has died and was replaced."""

    @property
    def problem(self) -> str | None:
        """Why it does not serve as it should (a worker that keeps dying); None: it does."""

    @property
    def open_connections(self) -> int:
        """Clients being served or dialed for, as far as known without asking."""

    async def retire(self) -> None:
        """Stop accepting, everywhere; what waits already is taken, and the open connections go on."""

    async def drain(self, grace_s: float) -> int:
        """Wait until the connections open now have ended, at most `grace_s` seconds; how many are left. Accepting
        goes on meanwhile, unless `retire` has ended it."""

    async def close(self) -> None:
        """Close every listener and connection."""


class PortReserver(Protocol):
    """Holds proxy ports, so that no other process gets them between two of ours listening."""

    def reserve(self, protocol: Transport, address: Address, port: int, *, claim: bool = False) -> Reservation:
        """Bind without listening; port 0 lets the kernel choose. OSError when the port is taken. A `claim` only keeps
        others from a port that netfilter takes away; nobody will listen there."""

    def share(self, on: bool) -> None:
        """Whether claims, those held and those to come, may also be held by another process of ours that says the
        same: while one follows the other. Otherwise nobody else gets them."""


class Reservation(Protocol):
    """A held port."""

    @property
    def port(self) -> int:
        """Its number."""

    def release(self) -> None:
        """Give it back."""
