"""The live picture of a running daemon, as values: what ``/statusz`` shows, as JSON, as text and as a page.

Plain data, so that it crosses to `kubeproxy status` as JSON and comes out there as the same values. Lengths of time are
seconds; moments are Unix seconds. Nothing in here is secret, and nothing can be changed through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.dataplane.interface import WorkerStatus


class State(StrEnum):
    """How a Service fares; the worst first, in which order they are shown."""

    PROBLEM = "problem"
    """It is not, or not wholly, served."""
    EJECTED = "ejected"
    """An endpoint of it is passed over."""
    EMPTY = "empty"
    """Some port of it has no endpoint in the cluster: its clients are refused. (That a policy admits endpoints of this
    node alone, and there are none, is as it should be on most nodes, and not told by this.)"""
    WAITING = "waiting"
    """It is new, and does not listen yet."""
    OK = "ok"


class Standing(StrEnum):
    """How an endpoint fares."""

    READY = "ready"
    EJECTED = "ejected"
    """Passed over, because it did not answer."""
    PROBING = "probe"
    """Was passed over; the next client may try it, or one is trying now."""
    TERMINATING = "terminating"
    """Leaves, and still serves, because nobody else is ready; or (not `used`) leaves, and is asked no more."""
    UNREADY = "unready"
    """Says itself that it is not ready; not asked."""
    ELSEWHERE = "elsewhere"
    """Ready, but a traffic policy or topology hints give this frontend's clients to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint of a frontend."""

    address: str
    """With its port."""
    standing: Standing
    used: bool
    """Whether clients are given to it (if only in turn, or for want of others)."""
    reason: str = ""
    """Ejected: ``refused``, ``timeout``, ``unreachable``."""
    failures: int = 0
    """Ejected: one after the other."""
    retry_in_s: float = 0.0
    workers: tuple[int, ...] = ()
    """Those that pass it over."""
    node: str = ""
    zone: str = ""
    preserved: bool = False
    """Whether it is dialed from the client's own address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCounters:
    """What `kubeproxy.dataplane.interface.Counters` holds, by name. (Between processes those cross without names.)"""

    accepted: int = 0
    active: int = 0
    refused: int = 0
    silent: int = 0
    no_endpoint: int = 0
    unable: int = 0
    dial_retries: int = 0
    dropped: int = 0
    evicted: int = 0
    affinity_entries: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    looped: int = 0

    @property
    def failed(self) -> int:
        """Whatever the reason."""
        return self.refused + self.silent + self.no_endpoint + self.unable + self.looped


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendStatus:
    """One listener's worth of a service port."""

    port: str
    """The service port's name; empty where the Service has only one."""
    protocol: str
    family: int
    scope: str
    proxy_port: int | None
    """None: it does not listen yet."""
    addresses: tuple[str, ...]
    """Where clients send to: ``10.96.0.1:80``, ``node port 30080``."""
    own_addresses: tuple[str, ...]
    """The same, for this node and its pods only."""
    source_ranges: tuple[str, ...]
    """Who alone may reach the load balancer's addresses; empty: everybody."""
    affinity_s: int | None
    when_empty: str
    """What becomes of clients without endpoints: ``refuse``, ``drop``."""
    counters: StatusCounters
    endpoints: tuple[EndpointStatus, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over frontends, since each was first listened for."""

    accepted: int = 0
    active: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over the last interval."""

    connections: float = 0.0
    failures: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Trend:
    """What the rates were, one number for each interval of `Status.every_s` seconds, the newest last. Before the
    history began there was nothing to see: zero."""

    connections: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()
    bytes: tuple[float, ...] = ()
    """Both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One Service."""

    namespace: str
    name: str
    state: State
    source: str
    problems: tuple[str, ...]
    traffic: Traffic
    rates: Rates | None
    """None: not known yet, or nobody has looked for a minute."""
    trend: Trend | None
    """None: nothing happened in the time that is remembered."""
    frontends: tuple[FrontendStatus, ...]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source of Services, or one resource that it watches."""

    name: str
    listed: bool
    """Whether it has told all that it has."""
    behind_s: float
    """For how long it may have missed something; 0: it follows."""
    last_event: float | None
    faults: int
    """Objects or documents that cannot be taken as they are."""
    remarks: tuple[str, ...] = ()
    left_out: int = 0
    """Objects that are not served, because all together mean more than is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetfilterStatus:
    """The packet filter."""

    adapter: str
    failing: str | None
    """Why the rules, the connection tracking or the data plane cannot be brought up to date; None: they can."""
    failures: int
    """Transactions that failed in a row."""
    programmed_ago_s: float | None
    """Since the last transaction; None: none yet."""
    pending_s: float | None
    """For how long a change has waited; None: all is in effect."""
    changes_pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A warning or error of the log."""

    at: float
    level: str
    text: str
    details: str
    times: int = 1
    """How often, one after the other."""


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
    """Everything at one moment, and those of the Services that were asked for."""

    version: str
    node: str
    pid: int
    now: float
    began: float
    healthy: bool
    """Serves, and all is in effect or on its way. That an endpoint is ill is no fault of the daemon."""
    complaints: tuple[str, ...]
    """Why it is not healthy."""
    draining: bool
    netfilter: NetfilterStatus
    sources: tuple[SourceStatus, ...]
    workers: tuple[WorkerStatus, ...]
    restarts: int
    totals: Totals
    recent_warnings: tuple[Incident, ...]
    """The last ones, the newest first."""
    every_s: float
    """How far the points of a trend are apart."""
    matched: int
    """How many Services fit what was asked for."""
    offset: int
    services: tuple[ServiceStatus, ...]
    """Last, so that a long list can be sent in pieces."""
