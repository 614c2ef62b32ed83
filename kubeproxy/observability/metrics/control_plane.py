"""The metrics of the control plane. First come those of kube-proxy, with the same names, types, labels and buckets, and
then our own.

Metrics of kube-proxy that would mean nothing here are omitted: the counts of iptables rules (``…_iptables_total``,
``…_iptables_last``: a Service costs map elements, not rules), the packets counted by nfacct, Go's runtime, and
``kubernetes_build_info``, which dashboards read as the release of Kubernetes.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from kubeproxy.model import Family
from kubeproxy.model.version import __version__
from kubeproxy.observability.metrics.slis import ServiceLevels
from kubeproxy.observability.metrics.state import StateCollector
from kubeproxy.observability.metrics.workers import Workers
from kubeproxy.observability.picture import ConfigurationState
from kubeproxy.runtime import compiled

SYNC_BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))
"""Go's ExponentialBuckets(0.001, 2, 15), as in pkg/proxy/metrics."""

PROGRAMMING_BUCKETS: Final = (0.0, 0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
"""The buckets of pkg/proxy/metrics, in seconds: 0, 0.25, 0.5; every second to 59; every 5 s from 60; every 30 s from
120 to 300."""

LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""The upper bounds of the buckets, in seconds: from a busy loop's usual lag to one that an operator notices."""

# kube-proxy has no ``_created`` series, and dashboards do not use them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Counters and histograms of the control plane, one method per event; `state` has its gauges.

    One sync programs all IP families at once, so each observation counts for the ``ip_family`` of every family, as with
    the two proxiers of kube-proxy. `clock` returns Unix seconds.
    """

    def __init__(self, *, families: Iterable[Family] = (Family.IPV4,), clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._started = clock()
        self._families = tuple(str(family) for family in families)
        self._register_kube_proxy()
        self._register_own()
        self.state = StateCollector()
        self.registry.register(self.state)
        self.workers = Workers()
        self.registry.register(self.workers)
        self.slis = ServiceLevels()
        ProcessCollector(registry=self.registry)

    def _register_kube_proxy(self) -> None:
        labels, registry = ("ip_family",), self.registry
        duration = partial(Histogram, labelnames=labels, buckets=SYNC_BUCKETS, registry=registry)
        gauge = partial(Gauge, labelnames=labels, registry=registry)
        counter = partial(Counter, labelnames=labels, registry=registry)
        self._sync = duration(
            "kubeproxy_sync_proxy_rules_duration_seconds", "Duration of a sync in the kernel's packet filter"
        )
        self._full_sync = duration(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Duration of a sync that compared everything with the kernel",
        )
        self._partial_sync = duration(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Duration of a sync that applied only a difference",
        )
        self._last_sync = gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Time of the last successful sync")
        self._last_queued = gauge(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "Time of the last request for a sync"
        )
        self._programming = duration(
            "kubeproxy_network_programming_duration_seconds",
            "From the change in the cluster (last-change-trigger-time) to the endpoint in use",
            buckets=PROGRAMMING_BUCKETS,
        )
        self._conntrack = duration(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "Duration of finding and deleting the flows that contradict the rules",
        )
        self._nftables_failures = counter(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Syncs that nftables refused"
        )
        self._iptables_failures = counter(
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "Syncs that iptables refused"
        )
        self._healthz = Counter("kubeproxy_proxy_healthz_total", "Answers of /healthz", ("code",), registry=registry)
        self._livez = Counter("kubeproxy_proxy_livez_total", "Answers of /livez", ("code",), registry=registry)
        by_family = (
            *(self._sync, self._full_sync, self._partial_sync, self._programming, self._conntrack),
            *(self._last_sync, self._last_queued, self._nftables_failures, self._iptables_failures),
        )
        # Create all series with 0 now. An alert cannot use a series that appears only with its first event.
        for instrument in by_family:
            for family in self._families:
                instrument.labels(family)
        for answers in (self._healthz, self._livez):
            for code in ("200", "503"):
                answers.labels(code)

    def _register_own(self) -> None:
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        build = gauge("kubeproxy_build_info", "Always 1", ("version", "python_version", "byte_path"))
        build.labels(__version__, platform.python_version(), compiled.form()).set(1)
        self._apply = Histogram(
            "kubeproxy_netfilter_apply_duration_seconds",
            "Duration of a transaction that the kernel's packet filter accepted",
            ("adapter",),
            buckets=SYNC_BUCKETS,
            registry=self.registry,
        )
        self._deleted_flows = counter(
            "kubeproxy_conntrack_deleted_flows_total", "Flows deleted because they contradicted the rules"
        )
        self._conntrack_failures = counter(
            "kubeproxy_conntrack_failures_total", "Failures to list or delete the kernel's flows"
        )
        self._access_log_lost = counter(
            "kubeproxy_access_log_lost_lines_total", "Lines of the access log that could not be written"
        )
        self._reload_successful = gauge(
            "kubeproxy_config_last_reload_successful", "Whether the last read of the configuration succeeded: 1 or 0"
        )
        self._reloaded_at = gauge(
            "kubeproxy_config_last_reload_success_timestamp_seconds",
            "Time at which the configuration in force was read",
        )
        self._needs_restart = gauge(
            "kubeproxy_config_restart_needed_fields",
            "Fields that have changed in the file and take effect at a restart only",
        )
        self._drain_reports = counter(
            "kubeproxy_drain_reports_total",
            "Writes of this node's drain report by result: written, or failed and tried again",
            ("result",),
        )
        for result in ("written", "failed"):
            self._drain_reports.labels(result)
        self._http_refused = counter(
            "kubeproxy_http_connections_refused_total",
            "Refused connections to the HTTP servers, because their address made too many per second",
            ("server",),
        )
        for server in ("health", "metrics"):
            self._http_refused.labels(server)
        self._lag = Histogram(
            "kubeproxy_loop_lag_seconds",
            "How late the event loop of the control process runs a timer",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        self._apply_failures = counter(
            "kubeproxy_netfilter_apply_failures_total",
            "Transactions that the kernel's packet filter refused",
            ("adapter",),
        )

    def sync_queued(self) -> None:
        """Count a request for a sync."""
        for name in self._families:
            self._last_queued.labels(name).set(self._clock())

    def synced(self, duration_s: float, *, full: bool, adapter: str) -> None:
        """Count a successful transaction. `full` is true if the transaction compared everything with the kernel."""
        self._apply.labels(adapter).observe(duration_s)
        for name in self._families:
            self._sync.labels(name).observe(duration_s)
            (self._full_sync if full else self._partial_sync).labels(name).observe(duration_s)
            self._last_sync.labels(name).set(self._clock())

    def programmed(self, trigger_time: str) -> None:
        """Observe the latency of a change of endpoints that has just come into effect. `trigger_time` (RFC 3339) is
        when the cluster made the change.

        As in kube-proxy, times before the start of this process are ignored. Invalid times are ignored, too, because
        the annotation of an EndpointSlice may contain any text.
        """
        try:
            triggered = datetime.fromisoformat(trigger_time)
        except ValueError:
            return
        if triggered.tzinfo is not None and triggered.timestamp() >= self._started:
            for name in self._families:
                self._programming.labels(name).observe(max(0.0, self._clock() - triggered.timestamp()))

    def apply_failed(self, adapter: str) -> None:
        """Count a transaction that the packet filter refused."""
        self._apply_failures.labels(adapter).inc()
        counter = {"nftables": self._nftables_failures, "iptables": self._iptables_failures}.get(adapter)
        if counter is not None:
            for name in self._families:
                counter.labels(name).inc()

    def reconciled(self, duration_s: float, *, deleted: int) -> None:
        """Count a reconciliation of conntrack entries, and the entries that it deleted."""
        for name in self._families:
            self._conntrack.labels(name).observe(duration_s)
        self._deleted_flows.inc(deleted)

    def conntrack_failed(self) -> None:
        """Count a failure to list or delete conntrack entries."""
        self._conntrack_failures.inc()

    def lagged(self, lag_s: float) -> None:
        """Observe a lag of the event loop, in seconds."""
        self._lag.observe(lag_s)

    def configuration(self, state: ConfigurationState) -> None:
        """Set the state of the configuration."""
        self._reload_successful.set(not state.faults)
        self._reloaded_at.set(state.loaded_at)
        self._needs_restart.set(len(state.needs_restart))

    def access_log_lost(self, lines: int) -> None:
        """Count lost lines of the access log."""
        self._access_log_lost.inc(lines)

    def drain_report_written(self, succeeded: bool) -> None:
        """Count an attempt to write the drain report, and whether it succeeded."""
        self._drain_reports.labels("written" if succeeded else "failed").inc()

    def http_refused(self, server: str) -> None:
        """Count a refused connection of an HTTP server (`health`, `metrics`)."""
        self._http_refused.labels(server).inc()

    def healthz_answered(self, code: int) -> None:
        """Count an answer of /healthz by its status code."""
        self._healthz.labels(str(code)).inc()

    def livez_answered(self, code: int) -> None:
        """Count an answer of /livez by its status code."""
        self._livez.labels(str(code)).inc()
