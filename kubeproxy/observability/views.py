"""What this room reads of others, as far as it reads it. They are never imported; they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kubeproxy.dataplane.interface import EjectedEndpoint, WorkerStatus
from kubeproxy.model import Frontend, FrontendName, ServiceName


class FrontendView(Protocol):
    """A listener that is wanted."""

    @property
    def frontend(self) -> Frontend:
        """What it takes in and hands out."""

    @property
    def proxy_port(self) -> int | None:
        """Where it listens; None: nowhere yet."""


class ProxierView(Protocol):
    """The proxier's state at one moment; times are of its clock."""

    @property
    def frontends(self) -> Sequence[FrontendView]:
        """What is wanted."""

    @property
    def problems(self) -> Mapping[ServiceName, Sequence[str]]:
        """The Services that are not, or not wholly, served, and why."""

    @property
    def owners(self) -> Mapping[ServiceName, str]:
        """Every Service, and the source that it is served from."""

    @property
    def sources(self) -> Mapping[str, bool]:
        """Every source, and whether it has listed everything."""

    @property
    def netfilter(self) -> str:
        """The packet filter in use."""

    @property
    def failing(self) -> str | None:
        """Why something cannot be brought up to date; None: it can."""

    @property
    def failures(self) -> int:
        """Netfilter transactions that failed in a row."""

    @property
    def pending_since(self) -> float | None:
        """When the oldest change that is not in effect was first seen; None: everything is."""

    @property
    def programmed_at(self) -> float | None:
        """When the last netfilter transaction succeeded; None: never."""

    @property
    def service_changes_pending(self) -> int:
        """Services not in effect yet."""

    @property
    def service_changes_total(self) -> int:
        """Changes of Services received."""

    @property
    def endpoint_changes_pending(self) -> int:
        """Services whose endpoints are not in effect yet."""

    @property
    def endpoint_changes_total(self) -> int:
        """Changes of endpoints received."""


class WatchView(Protocol):
    """How the watch of one resource fares. Times are Unix seconds; None: never."""

    @property
    def resource(self) -> str:
        """Which: ``services``, ``endpointslices``."""

    @property
    def behind_s(self) -> float:
        """For how long it may have missed something; 0 while a watch works."""

    @property
    def last_event(self) -> float | None:
        """When the server last said anything."""

    @property
    def lists(self) -> int:
        """Full lists taken."""

    @property
    def watches(self) -> int:
        """Watches begun."""

    @property
    def events(self) -> int:
        """Events received."""

    @property
    def failures(self) -> Mapping[str, int]:
        """By cause: few words, never messages."""

    @property
    def faulty(self) -> int:
        """Objects of which some part cannot be served."""

    @property
    def left_out(self) -> int:
        """Objects that are not served, because all together mean more than is kept."""

    @property
    def kept_bytes(self) -> int:
        """What is kept of all objects, in bytes of JSON."""


class ManifestProblemView(Protocol):
    """Something in a manifest that cannot be taken as it is; `str` says where and what."""

    @property
    def skipped(self) -> bool:
        """Only told: an object of a kind that is not taken."""


class ManifestsView(Protocol):
    """What the manifests amount to."""

    @property
    def loaded(self) -> bool:
        """Whether all have been read once."""

    @property
    def problems(self) -> Sequence[ManifestProblemView]:
        """What stands against them."""

    @property
    def last_change(self) -> float:
        """When they last said something new, in Unix seconds; 0: never."""


LATENCY_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Upper bounds of client-go's request latency."""


class LatencyView(Protocol):
    """How long answers took, with a bucket for each of `LATENCY_BUCKETS_S` and one for the rest, not cumulative."""

    @property
    def counts(self) -> Sequence[int]:
        """How many."""

    @property
    def seconds(self) -> float:
        """Their sum."""


class RequestsView(Protocol):
    """What was asked of an API server."""

    @property
    def host(self) -> str:
        """Which: host and port."""

    @property
    def answers(self) -> Mapping[tuple[str, str], int]:
        """By method and code."""

    @property
    def latency(self) -> Mapping[str, LatencyView]:
        """By method."""


class EventsView(Protocol):
    """Kubernetes Events."""

    @property
    def sent(self) -> int:
        """Taken by the server."""

    @property
    def dropped(self) -> int:
        """Not told."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it at one moment."""

    proxier: ProxierView
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
    """None: there is no such source."""
    requests: RequestsView | None = None
    """None: there is no API server."""
    events: EventsView | None = None


class Serving(Protocol):
    """What is asked of the data plane (`kubeproxy.dataplane.interface.DataPlane`)."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """One for each process that serves."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """The endpoints that are passed over."""

    @property
    def restarts(self) -> int:
        """How often one was replaced."""

    @property
    def problem(self) -> str | None:
        """Why it does not serve as it should."""
