"""The metrics of the state of other parts, read at each scrape."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.informer.reflector_state import ReflectorState
from kubeproxy.model import Family, Scope
from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.model.manifests import ManifestState
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.observability.health import Reason
from kubeproxy.observability.logs.tenant_limit import TENANTS
from kubeproxy.observability.metrics.kernel_path import kernel_flow_families, rescue_families, slots_family
from kubeproxy.observability.picture import DrainingEndpoints, EventCounts, Picture
from kubeproxy.runtime.histogram import cumulative


class StateCollector(Collector):
    """Collects the metrics of the last `read`. Only the event loop's thread calls `read`; any thread may call
    `collect`."""

    def __init__(self) -> None:
        self._families: Sequence[Metric] = ()

    def read(self, picture: Picture) -> None:
        """Store the numbers of a picture. No reference to the picture is kept."""
        families = [*_proxier(picture.proxier), _degraded(picture.reasons), _stale(picture), _suppressed_lines()]
        if picture.conntrack is not None:
            families += _conntrack(picture.conntrack)
        if picture.watches:
            families += _watches(picture.watches)
        if picture.manifests is not None:
            families += _manifests(picture.manifests)
        if picture.requests is not None:
            families += _requests(picture.requests)
        if picture.events is not None:
            families += _events(picture.events)
        if picture.draining is not None:
            families += _draining(picture.draining)
        if picture.rescue is not None:
            families += rescue_families(picture.rescue)
            families.append(slots_family(picture.proxier.slots))
        if picture.kernel_flows is not None:
            families += kernel_flow_families(picture.kernel_flows)
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last `read`, for prometheus_client."""
        return self._families


def _suppressed_lines() -> Metric:
    lines = CounterMetricFamily(
        "kubeproxy_log_suppressed_lines", "Log lines about objects of tenants that exceeded the limit and were omitted"
    )
    lines.add_metric([], TENANTS.suppressed)
    return lines


def _degraded(reasons: Collection[Reason]) -> Metric:
    family = GaugeMetricFamily(
        "kubeproxy_degraded",
        "1 for each kind of problem that the daemon has, as in the status",
        labels=("reason",),
    )
    for reason in Reason:
        family.add_metric((reason,), reason in reasons)
    return family


def _stale(picture: Picture) -> Metric:
    now = time.time()
    family = GaugeMetricFamily(
        "kubeproxy_source_stale_seconds",
        "Age of an earlier run's state that is served because a source is not listed yet; 0: the source is served",
        labels=("source",),
    )
    for source in picture.proxier.sources:
        family.add_metric((source,), max(0.0, now - picture.stale[source]) if source in picture.stale else 0.0)
    return family


def _conntrack(room: ConntrackRoom) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kubeproxy_conntrack_entries", "Entries of the kernel's connection tracking, of all programs", room.entries
    )
    yield GaugeMetricFamily(
        "kubeproxy_conntrack_limit", "Entries at which connection tracking is full (nf_conntrack_max)", room.limit
    )
    yield CounterMetricFamily(
        "kubeproxy_conntrack_dropped_total",
        "First packets that the kernel dropped because connection tracking was full",
        room.dropped,
    )


def _proxier(proxier: Snapshot) -> Iterator[Metric]:
    prefix = "kubeproxy_sync_proxy_rules_"
    yield CounterMetricFamily(
        f"{prefix}service_changes_total", "Changes of Services received", proxier.service_changes_total
    )
    yield GaugeMetricFamily(
        f"{prefix}service_changes_pending", "Changes of Services not in effect yet", proxier.service_changes_pending
    )
    yield CounterMetricFamily(
        f"{prefix}endpoint_changes_total", "Changes of endpoints received", proxier.endpoint_changes_total
    )
    yield GaugeMetricFamily(
        f"{prefix}endpoint_changes_pending", "Changes of endpoints not in effect yet", proxier.endpoint_changes_pending
    )
    yield GaugeMetricFamily(
        "kubeproxy_services_degraded", "Services that are not served, or only in part", len(proxier.problems)
    )
    ports = [status.proxy_port for status in proxier.frontends]
    waiting = ports.count(None)
    frontends = GaugeMetricFamily(
        "kubeproxy_frontends", "Wanted listeners by state: serving, or waiting for a port", labels=("state",)
    )
    frontends.add_metric(("serving",), len(ports) - waiting)
    frontends.add_metric(("waiting",), waiting)
    yield frontends
    yield _data_paths(proxier)
    yield _without_local_endpoints(proxier)
    listed = GaugeMetricFamily(
        "kubeproxy_source_listed", "Whether the first list of a source is complete", labels=("source",)
    )
    for source, complete in proxier.sources.items():
        listed.add_metric((source,), complete)
    yield listed


def _data_paths(proxier: Snapshot) -> Metric:
    counted = Counter(str(status.data_path) for status in proxier.frontends)
    family = GaugeMetricFamily(
        "kubeproxy_data_path_frontends",
        "Frontends by the path of their new connections: through a worker (userspace), straight to an endpoint"
        " (kernel), or none, because the kernel cannot serve them and workers must not (refused)",
        labels=("data_path",),
    )
    for path in ("kernel", "userspace", "refused"):
        family.add_metric((path,), counted[path])
    return family


def _without_local_endpoints(proxier: Snapshot) -> Metric:
    """Return how many service ports have a Local policy but no local endpoint, as in kube-proxy."""
    counts = {(str(family), policy): 0 for family in Family for policy in _POLICIES.values()}
    for status in proxier.frontends:
        frontend = status.frontend
        if not frontend.endpoints and frontend.name.scope is not Scope.CLUSTER:
            counts[str(frontend.name.family), _POLICIES[frontend.name.scope]] += 1
    family = GaugeMetricFamily(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Service ports under a Local traffic policy without an endpoint on this node",
        labels=("ip_family", "traffic_policy"),
    )
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


_POLICIES: Final = {Scope.LOCAL: "internal", Scope.EXTERNAL: "external"}


def _watches(watches: Sequence[ReflectorState]) -> Iterator[Metric]:
    behind = GaugeMetricFamily(
        "kubeproxy_watch_behind_seconds",
        "Seconds for which changes of a resource may be missing; 0 while a watch works",
        labels=("resource",),
    )
    last_event = GaugeMetricFamily(
        "kubeproxy_watch_last_event_timestamp_seconds",
        "Time of the last answer or event of the API server for a resource",
        labels=("resource",),
    )
    faulty = GaugeMetricFamily(
        "kubeproxy_watch_faulty_objects", "Objects with a part that cannot be served", labels=("resource",)
    )
    left_out = GaugeMetricFamily(
        "kubeproxy_watch_left_out_objects",
        "Objects that are not served because of the memory limit; at most 10,000 are counted",
        labels=("resource",),
    )
    kept = GaugeMetricFamily(
        "kubeproxy_watch_kept_bytes", "Size of all kept objects, in bytes of JSON", labels=("resource",)
    )
    lists = CounterMetricFamily("kubeproxy_watch_lists_total", "Full lists", labels=("resource",))
    starts = CounterMetricFamily("kubeproxy_watch_starts_total", "Started watches", labels=("resource",))
    events = CounterMetricFamily("kubeproxy_watch_events_total", "Events received", labels=("resource",))
    failures = CounterMetricFamily(
        "kubeproxy_watch_failures_total", "Lists and watches that failed", labels=("resource", "cause")
    )
    for watch in watches:
        resource = (watch.resource,)
        behind.add_metric(resource, watch.behind_s)
        last_event.add_metric(resource, watch.last_event or 0.0)
        faulty.add_metric(resource, watch.faulty)
        left_out.add_metric(resource, watch.left_out)
        kept.add_metric(resource, watch.kept_bytes)
        lists.add_metric(resource, watch.lists)
        starts.add_metric(resource, watch.watches)
        events.add_metric(resource, watch.events)
        for cause, times in watch.failures.items():
            failures.add_metric((watch.resource, cause), times)
    yield from (behind, last_event, faulty, left_out, kept, lists, starts, events, failures)


def _manifests(manifests: ManifestState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kubeproxy_manifests_last_change_timestamp_seconds",
        "Time of the last change of the manifests",
        manifests.last_change,
    )
    yield GaugeMetricFamily(
        "kubeproxy_manifests_faults",
        "Faulty manifests and documents; their last good version stays in effect",
        len(manifests.faults),
    )
    yield GaugeMetricFamily(
        "kubeproxy_manifests_warnings",
        "Probable mistakes in manifests, such as unknown fields; the objects are served",
        sum(problem.warning for problem in manifests.problems),
    )


def _draining(draining: DrainingEndpoints) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kubeproxy_draining_endpoints",
        "Endpoints that get no new connections because a rollout asked for that",
        len(draining.addresses),
    )
    yield GaugeMetricFamily(
        "kubeproxy_draining_connections",
        "Open connections of this node to draining endpoints, as last counted",
        sum(draining.open.get(address, 0) for address in draining.addresses),
    )


def _requests(requests: Requests) -> Iterator[Metric]:
    """Yield client-go's metrics of requests, which dashboards use to show errors of the API server."""
    answers = CounterMetricFamily(
        "rest_client_requests_total",
        "Requests to the API server",
        labels=("code", "method", "host"),
    )
    for (method, code), times in requests.answers.items():
        answers.add_metric((code, method, requests.host), times)
    yield answers
    latency = HistogramMetricFamily(
        "rest_client_request_duration_seconds",
        "Time from a request to the headers of its answer",
        labels=("verb", "host"),
    )
    for method, durations in requests.latency.items():
        latency.add_metric((method, requests.host), cumulative(durations.bounds, durations.counts), durations.seconds)
    yield latency


def _events(events: EventCounts) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "kubeproxy_events_sent_total", "Kubernetes Events that the API server accepted", events.sent
    )
    yield CounterMetricFamily(
        "kubeproxy_events_dropped_total", "Kubernetes Events beyond the rate limit, or refused", events.dropped
    )
