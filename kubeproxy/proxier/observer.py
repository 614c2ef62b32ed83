"""The interface by which the proxier reports events to metrics, to health, and to the parts of the daemon that act once
a change is in force. It does not report state; metrics and the status read that from `ProxierView.snapshot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError


class ProxierObserver:
    """Receives the proxier's events and ignores them. Subclasses override the methods that they need.

    The methods are called in the event loop's thread. They must return at once and must not raise.
    """

    def queued(self) -> None:
        """Record that a change waits for a sync. This is called at most once between two calls of `settled`."""

    def settled(self, trigger_times: Sequence[str]) -> None:
        """Record that every known change is in effect. This is called after each round for which that is true.
        `trigger_times` (RFC 3339) are from annotations of the slices that came into effect since the last call; they
        measure the network programming latency."""

    def programmed(self, *, duration_s: float, full: bool, changed: bool) -> None:
        """Record that a netfilter transaction succeeded. `full` is true if the rules in the kernel were read, and
        `changed` if they had to be changed."""

    def reconciled(self, *, duration_s: float, deleted: int) -> None:
        """Record that the conntrack entries agree with the rules again after a transaction. `deleted` is the number of
        stale entries."""

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Record that stale conntrack entries could not be listed or deleted. The rules are in force, and the proxier
        tries again."""

    def failed(self, error: KubeproxyError) -> None:
        """Record that a netfilter transaction, or an update of the data plane, failed. The proxier tries again."""

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Record that the problems of Services have changed. `problems` has every Service that is not served, or only
        in part, with the reasons."""

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Record that the health check node ports, or their numbers of ready endpoints on this node, have changed. This
        is called once the rules are in force."""

    def drains_changed(self, drains: Mapping[ServiceName, DrainState]) -> None:
        """Record that the state of drain requests has changed."""
