"""Turns events of the proxier into health and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.metrics import Metrics


class SyncObserver:
    """An observer of the proxier. `adapter` names the packet filter; `clock` is the one of the health."""

    def __init__(
        self,
        health: ProxyHealth,
        metrics: Metrics,
        *,
        adapter: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._adapter = adapter
        self._clock = clock
        self._failed = False
        """Whether a sync failed since the last transaction."""

    def queued(self) -> None:
        """A change arrived and waits for a sync."""
        self._health.queued(self._clock())
        self._metrics.sync_queued()

    def settled(self, trigger_times: Sequence[str]) -> None:
        """All changes are in effect."""
        self._failed = False
        self._health.updated(self._clock())
        self._health.failing(None)
        for trigger_time in trigger_times:
            self._metrics.programmed(trigger_time)

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """A netfilter transaction succeeded; it counts as progress unless another step failed before it."""
        self._metrics.synced(duration_s, full=full, adapter=self._adapter)
        if not self._failed:
            self._health.progressed(self._clock())
            self._health.failing(None)
        self._failed = False

    def failed(self, error: KubeproxyError) -> None:
        """A sync failed; the proxier tries again."""
        self._failed = True
        self._health.failing(str(error))
        if isinstance(error, KernelError):
            self._metrics.apply_failed(self._adapter)

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Nothing to do: a scrape reads the number from the proxier's snapshot, and the node stays healthy."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Stale flows were deleted."""
        self._metrics.reconciled(duration_s, deleted=deleted)

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Stale flows may stay until the next transaction; the rules are in effect."""
        self._metrics.conntrack_failed()

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Nothing to do: `ServiceHealthServers` serves health check node ports."""

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Nothing to do: the drain reporter passes them on to rollouts."""
