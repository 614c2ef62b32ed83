"""The proxier's listener: turns what happens there into health and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kubeproxy.model import ServiceName
from kubeproxy.model.errors import KernelError, KubeproxyError
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.metrics import Metrics


class SyncObserver:
    """Fits the proxier's observer. `adapter` names the packet filter in use; `clock` is the one that health is asked
    by."""

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
        """Something failed since the last transaction, or since all was well."""

    def queued(self) -> None:
        """Something changed and is not in effect yet."""
        self._health.queued(self._clock())
        self._metrics.sync_queued()

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Everything known is in effect."""
        self._failed = False
        self._health.updated(self._clock())
        self._health.failing(None)
        for trigger_time in trigger_times:
            self._metrics.programmed(trigger_time)

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """A netfilter transaction succeeded. That is progress, unless something else failed on the way to it."""
        self._metrics.synced(duration_s, full=full, adapter=self._adapter)
        if not self._failed:
            self._health.progressed(self._clock())
            self._health.failing(None)
        self._failed = False

    def failed(self, error: KubeproxyError) -> None:
        """A sync failed; it will be tried again."""
        self._failed = True
        self._health.failing(str(error))
        if isinstance(error, KernelError):
            self._metrics.apply_failed(self._adapter)

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Some Services are not wholly served. The proxier's snapshot tells how many when a scraper asks; the node as
        a whole is no less healthy for it."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Stale flows were deleted."""
        self._metrics.reconciled(duration_s, deleted=deleted)

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Stale flows may be left until the next transaction; the rules are in force."""
        self._metrics.conntrack_failed()

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Health check node ports are served elsewhere."""
