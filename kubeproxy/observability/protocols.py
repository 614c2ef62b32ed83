"""Protocols for the parts of other rooms that observability reads, without importing those rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kubeproxy.dataplane.interface import EjectedEndpoint, WorkerStatus
from kubeproxy.model import Frontend, FrontendName, ServiceName
from kubeproxy.runtime.histogram import Histogram


class FrontendView(Protocol):
    """A wanted frontend."""

    @property
    def frontend(self) -> Frontend:
        """Its addresses and endpoints."""

    @property
    def proxy_port(self) -> int | None:
        """Its listening port; None: it does not listen yet."""


class ProxierView(Protocol):
    """The proxier's state at one moment; times are seconds of its clock."""

    @property
    def frontends(self) -> Sequence[FrontendView]:
        """All wanted frontends."""

    @property
    def problems(self) -> Mapping[ServiceName, Sequence[str]]:
        """Services that are not served, or only in part, and why."""

    @property
    def owners(self) -> Mapping[ServiceName, str]:
        """The source of each Service."""

    @property
    def sources(self) -> Mapping[str, bool]:
        """Whether the first list of each source is complete."""

    @property
    def netfilter(self) -> str:
        """The packet filter in use."""

    @property
    def failing(self) -> str | None:
        """Why the last sync failed; None: it did not."""

    @property
    def failures(self) -> int:
        """Failed netfilter transactions in a row."""

    @property
    def pending_since(self) -> float | None:
        """When the oldest pending change arrived; None: no change is pending."""

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
    """The watch of one resource. Times are Unix seconds; None: never."""

    @property
    def resource(self) -> str:
        """``services``, ``endpointslices``."""

    @property
    def behind_s(self) -> float:
        """Seconds for which changes may be missing; 0 while a watch works."""

    @property
    def last_event(self) -> float | None:
        """When the server last sent anything."""

    @property
    def lists(self) -> int:
        """Full lists."""

    @property
    def watches(self) -> int:
        """Started watches."""

    @property
    def events(self) -> int:
        """Received events."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Failures by cause; causes are a fixed set of words."""

    @property
    def faulty(self) -> int:
        """Objects with a part that cannot be served."""

    @property
    def left_out(self) -> int:
        """Objects that are not served because of the memory limit."""

    @property
    def kept_bytes(self) -> int:
        """Size of all kept objects, in bytes of JSON."""


class ManifestProblemView(Protocol):
    """A fault in a manifest; `str` gives place and fault."""

    @property
    def skipped(self) -> bool:
        """Whether it is only an object of a kind that is not read."""


class ManifestsView(Protocol):
    """The state of the manifests."""

    @property
    def loaded(self) -> bool:
        """Whether all manifests have been read once."""

    @property
    def problems(self) -> Sequence[ManifestProblemView]:
        """The faults of all manifests."""

    @property
    def last_change(self) -> float:
        """When a manifest last changed, in Unix seconds; 0: never."""


class RequestsView(Protocol):
    """Requests to an API server."""

    @property
    def host(self) -> str:
        """Host and port."""

    @property
    def answers(self) -> Mapping[tuple[str, str], int]:
        """Answers by method and code."""

    @property
    def latency(self) -> Mapping[str, Histogram]:
        """Latencies by method."""


class EventsView(Protocol):
    """Kubernetes Events."""

    @property
    def sent(self) -> int:
        """Events that the server accepted."""

    @property
    def dropped(self) -> int:
        """Events that were not sent or not accepted."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of the control plane at one moment."""

    proxier: ProxierView
    watches: Sequence[WatchView] = ()
    manifests: ManifestsView | None = None
    """None: no manifests are configured."""
    requests: RequestsView | None = None
    """None: no API server is configured."""
    events: EventsView | None = None


class Serving(Protocol):
    """The state of the data plane (`kubeproxy.dataplane.interface.DataPlane`)."""

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """The status of each worker."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """The ejected endpoints."""

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""

    @property
    def problem(self) -> str | None:
        """Why the data plane is degraded; None: it is not."""
