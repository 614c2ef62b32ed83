"""Turns the proxier's events into health, metrics and Kubernetes Events, and passes them on to the parts that depend on
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kubeproxy.daemon.service_events import Events
from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.proxier.observer import ProxierObserver


class ProxierEvents(ProxierObserver):
    """The proxier's observer. `adapter` is the name of the packet filter's adapter, and `clock` is the clock of the
    health."""

    def __init__(
        self,
        health: ProxyHealth,
        metrics: Metrics,
        *,
        adapter: str,
        events: Events,
        on_service_health: Callable[[Mapping[ServiceName, tuple[int, int]]], None],
        on_drains: Callable[[Mapping[ServiceName, DrainState]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_service_health` gets the Services with health check node ports, and `on_drains` the states of drain
        requests."""
        self._health = health
        self._metrics = metrics
        self._adapter = adapter
        self._events = events
        self._on_service_health = on_service_health
        self._on_drains = on_drains
        self._clock = clock
        self._failed = False
        """Whether a sync has failed since the last transaction."""

    def queued(self) -> None:
        """Record that a change waits for a sync."""
        self._health.queued(self._clock())
        self._metrics.sync_queued()

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Record that all changes are in effect."""
        self._failed = False
        self._health.updated(self._clock())
        self._health.failing(None)
        for trigger_time in trigger_times:
            self._metrics.programmed(trigger_time)

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """Record a transaction. It counts as progress unless an earlier step has failed."""
        self._metrics.synced(duration_s, full=full, adapter=self._adapter)
        if not self._failed:
            self._health.progressed(self._clock())
            self._health.failing(None)
        self._failed = False

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Count the stale conntrack entries that were deleted."""
        self._metrics.reconciled(duration_s, deleted=deleted)

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Count the failure. Health does not change, because the rules are in force."""
        self._metrics.conntrack_failed()

    def failed(self, error: KubeproxyError) -> None:
        """Record a failed sync. A failure of the kernel is counted for the packet filter."""
        self._failed = True
        self._health.failing(str(error))
        if isinstance(error, KernelError):
            self._metrics.apply_failed(self._adapter)

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Send Events about new problems. Health does not change, and nothing is counted: metrics take the number of
        problems from the snapshot."""
        self._events.services_degraded(problems)

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Pass on the Services with a health check node port."""
        self._on_service_health(wanted)

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Pass on which drain requests are in effect."""
        self._on_drains(drains)
