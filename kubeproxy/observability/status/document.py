"""The status of a running daemon as values. ``/statusz`` shows them as JSON, text and page.

They are plain data: `kubeproxy status` decodes the JSON to the same values. Durations are in seconds, and times are
Unix seconds. Nothing in here is secret, and nothing can be changed through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import structs

from kubeproxy.dataplane.interface import Counters, WorkerStatus
from kubeproxy.model import NODE_PORTS, Destination, Frontend, Origin, Target
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.model.snapshot import FrontendState
from kubeproxy.observability.picture import ConfigurationState


class State(StrEnum):
    """The state of a Service. The worst state comes first, and a list shows them in this order."""

    PROBLEM = "problem"
    """The Service is not served, or only in part."""
    EJECTED = "ejected"
    """At least one of its endpoints is ejected."""
    EMPTY = "empty"
    """A port has no endpoint in the cluster, and its clients are refused. A Local traffic policy without endpoints on
    this node does not count, because that is normal on most nodes."""
    WAITING = "waiting"
    """The Service is new and has no listener yet."""
    OK = "ok"
    """The Service is served."""


class Standing(StrEnum):
    """The state of an endpoint of a frontend."""

    READY = "ready"
    """The endpoint gets clients in its turn."""
    EJECTED = "ejected"
    """The endpoint did not answer, and gets no clients until its next probe."""
    PROBING = "probing"
    """The endpoint was ejected. The next client tries it, or a probe runs now."""
    TERMINATING = "terminating"
    """The endpoint terminates, and gets clients only while no endpoint is ready (`used`)."""
    DRAINING = "draining"
    """A rollout has asked that the endpoint gets no new clients. It gets some only while no endpoint is ready
    (`used`)."""
    UNREADY = "unready"
    """The endpoint is not ready according to its EndpointSlice, and gets no clients."""
    ELSEWHERE = "elsewhere"
    """The endpoint is ready, but a traffic policy or topology hints keep this frontend's clients from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint of a frontend."""

    address: str
    """The endpoint's address with its port."""
    standing: Standing
    used: bool
    """Whether the frontend can send clients to the endpoint."""
    reason: str = ""
    """Why an ejected endpoint failed: ``refused``, ``timeout``, ``silent``, ``unreachable``."""
    failures: int = 0
    """The number of failed dials in a row of an ejected endpoint."""
    retry_in_s: float = 0.0
    ejected_for_s: float = 0.0
    """For how many seconds the endpoint has been ejected."""
    """Ejected: seconds until its next probe."""
    workers: tuple[int, ...] = ()
    """The workers that have ejected the endpoint."""
    noticed_by: str = ""
    """Who noticed the failure of an ejected endpoint: ``rescue`` (a client's packet on the kernel path), ``worker`` (a
    dial on the userspace path)."""
    node: str = ""
    zone: str = ""
    open: int = 0
    """The number of open connections and sessions of this node through workers. For a draining endpoint those of the
    kernel path are added, as last counted."""
    weight: int = 1
    share: float = 0.0
    """The endpoint's share of new connections by its weight, from 0 to 1. Ejected endpoints count as if they were in
    use."""
    by_hand: bool = False
    """Whether a draining endpoint was taken out by a person and not by a rollout."""
    preserved: bool = False
    """Whether the proxy dials the endpoint from the client's own address."""


class NamedCounters(Counters, array_like=False):
    """The data plane's counters with field names in JSON. Between processes they have no names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendStatus:
    """One frontend: a service port in one family and scope."""

    port: str
    """The service port's name. It is empty if the Service has only one port."""
    protocol: str
    family: int
    scope: str
    proxy_port: int | None
    """The proxy port, or None while the frontend has no listener yet."""
    addresses: tuple[str, ...]
    """The addresses that clients use: ``10.96.0.1:80``, ``node port 30080``."""
    own_addresses: tuple[str, ...]
    """The addresses that are redirected only for this node and its pods."""
    source_ranges: tuple[str, ...]
    """The client addresses that the load balancer's addresses admit. It is empty if all are admitted."""
    affinity_s: int | None
    """The timeout of session affinity, or None without affinity."""
    scheduler: str
    """How the endpoint of a new connection is chosen: ``round-robin``, ``random``, ``least-connections``,
    ``source-hash``, ``maglev``."""
    when_empty: str
    """What happens to clients if there are no endpoints: ``refuse`` or ``drop``."""
    counters: NamedCounters
    endpoints: tuple[EndpointStatus, ...]
    data_path: str = "userspace"
    """The path of new connections: ``userspace`` (through a worker), ``kernel`` (straight to an endpoint),
    ``refused``."""
    data_path_reason: str = ""
    """Why new connections do not take the kernel path. It is empty if they do."""
    targets: tuple[str, ...] = ()
    """The endpoints to which the kernel leads new connections."""
    kernel_bytes: bool = True
    """Whether the kernel counts bytes of connections (net.netfilter.nf_conntrack_acct)."""

    @classmethod
    def of(
        cls, state: FrontendState, counters: Counters, endpoints: tuple[EndpointStatus, ...], *, kernel_bytes: bool
    ) -> FrontendStatus:
        """Return the status of a frontend from its state and counters."""
        frontend = state.frontend
        return cls(
            port=frontend.name.service_port.port,
            protocol=frontend.protocol,
            family=int(frontend.name.family),
            scope=frontend.name.scope,
            proxy_port=state.proxy_port,
            addresses=_addresses(frontend, Origin.ANYWHERE),
            own_addresses=_addresses(frontend, Origin.NODE),
            source_ranges=tuple(sorted(frontend.source_ranges)),
            affinity_s=frontend.affinity_timeout_s,
            scheduler=frontend.balancing.scheduler,
            when_empty=frontend.when_empty,
            counters=NamedCounters(**structs.asdict(counters)),
            endpoints=endpoints,
            data_path=str(state.data_path),
            data_path_reason=state.data_path_reason,
            targets=tuple(map(str, state.targets)),
            kernel_bytes=kernel_bytes,
        )


def _addresses(frontend: Frontend, origin: Origin) -> tuple[str, ...]:
    return tuple(destination_text(to) for to, its in sorted(frontend.destinations.items()) if its is origin)


def destination_text(destination: Destination) -> str:
    """Return an address as a client uses it: ``10.96.0.1:80``, ``node port 30080``."""
    if destination.address in NODE_PORTS.values():
        return f"node port {destination.port}"
    return str(Target(destination.address, destination.port))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of both data paths, summed over frontends since each began to listen. The kernel's bytes are those of
    packets."""

    accepted: int = 0
    active: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """The amounts per second over the last interval."""

    connections: float = 0.0
    failures: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Trend:
    """Past rates, with one number for each interval of `Status.interval_s` seconds, the newest last. Numbers from
    before the history began are zero."""

    connections: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()
    bytes: tuple[float, ...] = ()
    """The bytes of both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One Service."""

    namespace: str
    name: str
    state: State
    source: str
    problems: tuple[str, ...]
    health_port: int
    """The node port at which load balancers ask for the Service's health, or 0 if there is none."""
    traffic: Traffic
    rates: Rates | None
    """The rates, or None as long as no two samples were taken in a row."""
    trend: Trend | None
    """The trend, or None if there was no traffic in the recorded time."""
    frontends: tuple[FrontendStatus, ...]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source of Services, or one resource that the source watches."""

    name: str
    listed: bool
    """Whether the source's first list is complete."""
    behind_s: float
    """For how many seconds changes may be missing. It is 0 if the source is up to date."""
    last_event: float | None
    """The Unix time of the last event, or None before the first one."""
    faults: int
    """The number of objects or documents with a fault."""
    problems: tuple[str, ...] = ()
    """The faults, or failed lists and watches, one line each."""
    left_out: int = 0
    """The number of objects that are not served because of the memory limit."""
    stale_since: float | None = None
    """The Unix time since which the state of an earlier run, which replaces the source's own, may be wrong. It is None
    if no such state is served."""
    warnings: int = 0
    """Probable mistakes in objects that are served all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetfilterStatus:
    """The packet filter."""

    adapter: str
    failing: str | None
    """Why rules, connection tracking or data plane cannot be updated, or None if they can."""
    failures: int
    """The number of failed transactions in a row."""
    programmed_ago_s: float | None
    """Seconds since the last transaction, or None before the first one."""
    pending_s: float | None
    """Seconds since the oldest pending change, or None if no change is pending."""
    changes_pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueStatus(RescueCounts):
    """The rescue of failed connections of the kernel path, with its counts since the start of the daemon."""

    working: bool
    """Whether failed connections are rescued now."""
    since_s: float
    """For how many seconds `working` has had its value."""
    problem: str
    """Why failed connections are not rescued. It is empty if they are, or if the rescue is about to start."""
    restarts: int
    """How often the rescue process was started again."""
    reports: int
    """The number of failures that packets have reported."""
    ejected: int
    """The number of endpoints that get no new connections from the kernel now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFlowsStatus:
    """The connections of the kernel path in connection tracking."""

    open: int
    """The number of open connections as of the last reading."""
    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading failed, so that open connections and bytes are old. It is empty if the reading did not
    fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPathsStatus:
    """The paths that new connections take."""

    wanted: str
    """The setting kubeproxy.dataPath: ``userspace``, ``kernel``, ``auto``."""
    kernel: int
    """The number of frontends whose new connections go straight to an endpoint."""
    userspace: int
    """The number of frontends whose new connections go through a worker."""
    refused: int
    """The number of frontends whose new connections are refused, because no worker may serve what the kernel cannot
    lead."""
    reasons: dict[str, int]
    """Why frontends do not take the kernel path, each reason with the number of frontends, the most frequent first, at
    most ten."""
    rescue: RescueStatus | None
    """The state of the rescue, or None if the kernel path is not configured."""
    flows: KernelFlowsStatus | None = None
    """The state of the kernel path's flows, or None until a rule has led a connection by the kernel path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWarning:
    """A recent warning or error of the log."""

    at: float
    level: str
    text: str
    details: str
    times: int = 1
    """How many times the line was logged in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All Services together."""

    services: int
    by_state: dict[State, int]
    ejected_endpoints: int
    traffic: Traffic
    rates: Rates | None
    trend: Trend | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of the daemon and of the Services that the query selects."""

    version: str
    node: str
    pid: int
    now: float
    began: float
    healthy: bool
    """Whether the daemon serves and its changes take effect in time. An ejected endpoint is no fault of the daemon."""
    summary: str
    """The state of the daemon in a few words: ``healthy``, ``degraded, 2 Services with a problem``."""
    problems: tuple[str, ...]
    """The problems of the daemon, the worst first: ``conntrack: the kernel's connection tracking is full``."""
    draining: bool
    netfilter: NetfilterStatus
    sources: tuple[SourceStatus, ...]
    workers: tuple[WorkerStatus, ...]
    restarts: int
    totals: Totals
    recent_warnings: tuple[RecentWarning, ...]
    """The recent warnings, the newest first."""
    interval_s: float
    """The number of seconds between two points of a trend."""
    configuration: ConfigurationState | None = None
    data_paths: DataPathsStatus | None = None
    hint: str = ""
    """Why no Service matches the query, and what was probably meant. It is empty if some do."""
    matched: int
    """The number of Services that match the query."""
    offset: int
    services: tuple[ServiceStatus, ...]
    """The Services. This is the last field, so that a long list can be sent in pieces."""
