"""The interface by which the proxier reports events to metrics, to health, and to the parts of the daemon that act once
a change is in force. State is not reported: metrics and the status read it from `ProxierView.snapshot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError


class ProxierObserver:
    """Receives the proxier's events and does nothing; a subclass overrides the methods whose events it needs.

    The methods are called from the event loop's thread. They return at once and do not raise.
    """

    def queued(self) -> None:
        """Note that a change waits for a sync. It is called once until the next `settled`."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Note that every known change is in effect. This is called after each round after which that is true.
        `trigger_times` are annotations (RFC 3339) of the slices that came into effect since the last call, for the
        network programming latency."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """Note that a netfilter transaction succeeded. `full` is true if the rules in the kernel were read, and
        `changed` if the rules had to be changed."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Note that after a transaction the kernel's UDP flows agree with the rules. `deleted` is the number of stale
        flows."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Note that stale flows could not be listed or deleted. The rules are in force all the same, and the proxier
        tries again."""

    def failed(self, error: KubeproxyError) -> None:
        """Note that a netfilter transaction, or an update of the data plane, failed. The proxier tries again."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Note the Services that are not served, or only in part, and why. This is called when they change."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Note the health check node port of each Service that has one, and its number of ready endpoints on this node.
        This is called when they change, once the rules are in force."""

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Note the state of the Services' drain requests. This is called when it changes."""
