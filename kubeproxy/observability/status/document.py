"""The status of a running daemon as values. ``/statusz`` shows it as JSON, as text and as a page.

The values are plain data, so that `kubeproxy status` can decode the JSON to the same values. Durations are in seconds,
and times are Unix seconds. The status contains no secrets, and nothing can be changed through it.
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
    """The state of a Service, the worst first. Lists of Services use this order."""

    PROBLEM = "problem"
    """The Service is not served, or only in part."""
    EJECTED = "ejected"
    """At least one of its endpoints is ejected."""
    EMPTY = "empty"
    """A service port has no endpoint in the cluster, so its clients are refused. A Local traffic policy without
    endpoints on this node does not count, because that is normal on most nodes."""
    WAITING = "waiting"
    """The Service is new and has no listener yet."""
    OK = "ok"
    """The Service is served."""


class Standing(StrEnum):
    """The state of an endpoint of a frontend."""

    READY = "ready"
    """The endpoint gets clients."""
    EJECTED = "ejected"
    """The endpoint did not answer, and gets no clients until its next probe."""
    PROBING = "probing"
    """The endpoint was ejected, and is being tried: by a probe that runs now, or by the next client."""
    TERMINATING = "terminating"
    """The endpoint is terminating. It gets clients only while no endpoint is ready (then `used` is true)."""
    DRAINING = "draining"
    """A rollout has asked that the endpoint gets no new clients. It gets some only while no endpoint is ready (then
    `used` is true)."""
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
    """Which process noticed the failure of an ejected endpoint: ``rescue`` (by a client's packet on the kernel path) or
    ``worker`` (by a dial on the userspace path)."""
    node: str = ""
    zone: str = ""
    open: int = 0
    """The number of open connections and sessions to the endpoint through workers. For a draining endpoint it includes
    those of the kernel path, as last counted."""
    weight: int = 1
    share: float = 0.0
    """The endpoint's share of new connections by its weight, from 0 to 1, computed as if no endpoint were ejected."""
    by_hand: bool = False
    """Whether an operator has taken the endpoint out of service, and not a rollout. It is then shown as draining."""
    preserved: bool = False
    """Whether the endpoint is dialed from the client's own address."""


class NamedCounters(Counters, array_like=False):
    """The data plane's counters with field names in JSON. (Messages between processes omit the names.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendStatus:
    """The status of one frontend: a service port in one family and scope."""

    port: str
    """The service port's name. It is empty if the Service has only one port."""
    protocol: str
    family: int
    scope: str
    proxy_port: int | None
    """The proxy port, or None while the frontend has no listener yet."""
    addresses: tuple[str, ...]
    """The addresses that clients use, such as ``10.96.0.1:80`` or ``node port 30080``."""
    own_addresses: tuple[str, ...]
    """The addresses that are served only for clients on this node and its pods."""
    source_ranges: tuple[str, ...]
    """The client addresses (CIDRs) that may use the load balancer's addresses. It is empty if all may."""
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
    """The endpoints among which the kernel chooses for new connections."""
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
    """The traffic of both data paths, summed over frontends since each of them began to listen. The kernel counts the
    bytes of whole packets."""

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
    """Past rates, the newest last. Each number is for one interval of `Status.interval_s` seconds; before the recorded
    time it is zero."""

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
    """The health check node port, or 0 if there is none."""
    traffic: Traffic
    rates: Rates | None
    """The rates, or None until two consecutive samples exist."""
    trend: Trend | None
    """The trend, or None if the recorded time has no traffic."""
    frontends: tuple[FrontendStatus, ...]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source of Services, or one resource that the source watches."""

    name: str
    listed: bool
    """Whether the source's first list is complete."""
    behind_s: float
    """For how many seconds changes may have been missed. It is 0 if the source is up to date."""
    last_event: float | None
    """The Unix time of the last event, or None before the first one."""
    faults: int
    """The number of objects or documents with a fault."""
    problems: tuple[str, ...] = ()
    """The faults, or failed lists and watches, one line each."""
    left_out: int = 0
    """The number of objects that are not served because of the memory limit."""
    stale_since: float | None = None
    """Since when the saved state of an earlier run, which is served instead, may be out of date (Unix time). It is None
    if the source itself is served."""
    warnings: int = 0
    """The number of probable mistakes in objects that are served nevertheless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetfilterStatus:
    """The packet filter."""

    adapter: str
    failing: str | None
    """Why the rules, conntrack entries or the data plane cannot be updated, or None if they can."""
    failures: int
    """How many transactions in a row have failed."""
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
    """For how many seconds `working` has not changed."""
    problem: str
    """Why failed connections are not rescued. It is empty if they are, or if the rescue process is just starting."""
    restarts: int
    """How often the rescue process was started again."""
    reports: int
    """How many failures were reported by packets."""
    ejected: int
    """How many endpoints are ejected on the kernel path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFlowsStatus:
    """The connections of the kernel path in connection tracking."""

    open: int
    """The number of open connections as of the last reading."""
    bytes_counted: bool
    """Whether the kernel counts bytes (net.netfilter.nf_conntrack_acct)."""
    problem: str
    """Why the last reading of connection tracking failed, so that open connections and bytes are out of date. It is
    empty if the reading succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPathsStatus:
    """How many frontends use each data path, and why."""

    wanted: str
    """The setting kubeproxy.dataPath: ``userspace``, ``kernel``, ``auto``."""
    kernel: int
    """The number of frontends whose new connections go straight to an endpoint."""
    userspace: int
    """The number of frontends whose new connections go through a worker."""
    refused: int
    """The number of frontends whose new connections are refused: the kernel cannot serve them, and workers must not
    (strict kernel path)."""
    reasons: dict[str, int]
    """The reasons why frontends do not use the kernel path, each with its number of frontends: at most ten, the most
    frequent first."""
    rescue: RescueStatus | None
    """The state of the rescue, or None if the kernel path is not configured."""
    flows: KernelFlowsStatus | None = None
    """The state of the kernel path's connections, or None if no rule has used the kernel path yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWarning:
    """A recent warning or error of the log."""

    at: float
    level: str
    text: str
    details: str
    times: int = 1
    """How many times in a row the entry was logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums over all Services."""

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
    """Whether the daemon serves, and its changes take effect in time. An ejected endpoint does not count as a problem
    of the daemon."""
    summary: str
    """The state of the daemon in a few words, such as ``healthy`` or ``degraded, 2 Services with a problem``."""
    problems: tuple[str, ...]
    """The problems of the daemon, the worst first, such as ``conntrack: the kernel's connection tracking is full``."""
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
    """Why no Service matches the query, and what was probably meant. It is empty if a Service matches."""
    matched: int
    """The number of Services that match the query."""
    offset: int
    services: tuple[ServiceStatus, ...]
    """The selected Services. This is the last field, so that a long list can be sent in pieces."""
