"""The observer of the proxier: receives events for metrics and health.

State is not an event: metrics and health read it from `Proxier.snapshot()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError


class ProxierObserver(Protocol):
    """Called synchronously, from the event loop's thread; its methods return at once and do not raise."""

    def queued(self) -> None:
        """A change is not in effect yet. Called once until `settled`."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Every known change is in effect; called after each round of which this is true. `trigger_times`: annotations
        (RFC 3339) of the slices that came into effect since the last call, for the network programming latency."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """A netfilter transaction succeeded. `full`: the rules in the kernel were read; `changed`: they had to be
        changed."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """After a transaction the kernel's UDP flows agree with the rules; `deleted`: stale ones."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Stale flows could not be listed or deleted. The rules are in force all the same; it is retried."""

    def failed(self, error: KubeproxyError) -> None:
        """A netfilter transaction, or an update of the data plane, failed. It is retried."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """The Services that are not, or not wholly, served, and why. Called when they change."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """The Services with a health check node port: that port, and the number of ready endpoints on this node.
        Called when they change."""

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """What is in effect of the Services' drain requests. Called when it changes."""


class NoObserver:
    """Ignores every event."""

    def queued(self) -> None:
        """Ignored."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Ignored."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """Ignored."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Ignored."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Ignored."""

    def failed(self, error: KubeproxyError) -> None:
        """Ignored."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Ignored."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Ignored."""

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Ignored."""
