"""Metrics of the controller manager. Metrics of work queues, leader election and requests have upstream's names. The
others begin with ``kubeproxy_``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kubeproxy.controllers.deployments.rollout_status import State, state_of
from kubeproxy.controllers.manager.manager import ControllerManager
from kubeproxy.controllers.readiness.gates import Reason
from kubeproxy.kubernetes.client.request_metrics import LATENCY_BUCKETS_S
from kubeproxy.runtime.histogram import Histogram, cumulative


class ManagerCollector(Collector):
    """Collects the manager's metrics at each scrape. It must run in the thread of the event loop."""

    def __init__(self, manager: ControllerManager) -> None:
        self._manager = manager

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families, for prometheus_client."""
        yield from self._queues()
        yield from self._leadership()
        yield from self._requests()
        yield from self._rollouts()
        yield from self._gates()
        yield from self._watches()

    def _queues(self) -> Iterator[Metric]:
        now = asyncio.get_running_loop().time()
        labels = ("name",)
        adds = CounterMetricFamily("workqueue_adds_total", "Additions to a work queue", labels=labels)
        depth = GaugeMetricFamily("workqueue_depth", "Keys that wait in a work queue", labels=labels)
        retries = CounterMetricFamily("workqueue_retries_total", "Rate-limited additions", labels=labels)
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds", "Seconds of work under way, all keys together", labels=labels
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds", "Seconds of the longest work under way", labels=labels
        )
        waited = HistogramMetricFamily(
            "workqueue_queue_duration_seconds", "From the addition of a key to the start of its work", labels=labels
        )
        worked = HistogramMetricFamily(
            "workqueue_work_duration_seconds", "From the start of the work on a key to its end", labels=labels
        )
        failed = CounterMetricFamily("kubeproxy_controller_sync_errors_total", "Syncs that failed", labels=labels)
        dropped = CounterMetricFamily(
            "kubeproxy_controller_syncs_given_up_total", "Keys given up until their next event", labels=labels
        )
        for controller in self._manager.controllers:
            queue, name = controller.queue, (controller.name,)
            total, most = queue.unfinished_s(now)
            adds.add_metric(name, queue.counters.adds)
            depth.add_metric(name, len(queue))
            retries.add_metric(name, queue.counters.retries)
            unfinished.add_metric(name, total)
            longest.add_metric(name, most)
            _add(waited, name, queue.counters.waited)
            _add(worked, name, queue.counters.worked)
            failed.add_metric(name, controller.errors)
            dropped.add_metric(name, controller.dropped)
        yield from (adds, depth, retries, unfinished, longest, waited, worked, failed, dropped)

    def _leadership(self) -> Iterator[Metric]:
        leadership = self._manager.leadership
        if leadership is not None:
            master = GaugeMetricFamily("leader_election_master_status", "Whether this process leads", labels=("name",))
            master.add_metric((leadership.name.name,), leadership.is_leading())
            yield master
        rival = self._manager.rival
        seen = GaugeMetricFamily(
            "kubeproxy_controller_rival",
            "1 while kube-controller-manager leads, too (lease), or has made objects of the same owners (objects)",
            labels=("seen",),
        )
        seen.add_metric(("lease",), rival is not None and rival.holder != "")
        seen.add_metric(("objects",), rival is not None and rival.made != "")
        yield seen

    def _requests(self) -> Iterator[Metric]:
        answers: Counter[tuple[str, str, str]] = Counter()
        latencies: dict[tuple[str, str], Histogram] = {}
        for client in self._manager.clients.values():
            requests = client.requests
            for (method, code), times in requests.answers.items():
                answers[code, method, requests.host] += times
            for method, found in requests.latency.items():
                total = latencies.setdefault((method, requests.host), Histogram(LATENCY_BUCKETS_S))
                total.counts = [one + other for one, other in zip(total.counts, found.counts, strict=True)]
                total.seconds += found.seconds
        counted = CounterMetricFamily(
            "rest_client_requests_total", "Requests to the API server", labels=("code", "method", "host")
        )
        for labels, times in answers.items():
            counted.add_metric(labels, times)
        yield counted
        timed = HistogramMetricFamily(
            "rest_client_request_duration_seconds",
            "From a request to the headers of its answer",
            labels=("verb", "host"),
        )
        for of, latency in latencies.items():
            _add(timed, of, latency)
        yield timed

    def _rollouts(self) -> Iterator[Metric]:
        states = Counter(state_of(deployment) for deployment in self._manager.informers.deployments.store)
        rollouts = GaugeMetricFamily(
            "kubeproxy_rollouts", "Deployments by the state of their rollout", labels=("state",)
        )
        for state in State:
            rollouts.add_metric((state.value.replace(" ", "_"),), states[state])
        yield rollouts
        objects = GaugeMetricFamily("kubeproxy_cached_objects", "Objects in memory", labels=("resource",))
        manager = self._manager
        for name, count in (
            (manager.informers.deployments.name, len(manager.informers.deployments.store)),
            (manager.informers.replica_sets.name, len(manager.informers.replica_sets.store)),
            (manager.informers.replication_controllers.name, len(manager.informers.replication_controllers.store)),
            (manager.informers.pods.name, len(manager.informers.pods.store)),
        ):
            objects.add_metric((name,), count)
        yield objects
        yield CounterMetricFamily(
            "kubeproxy_events_sent_total",
            "Kubernetes Events that the API server took",
            sum(recorder.sent for recorder in manager.recorders),
        )
        yield CounterMetricFamily(
            "kubeproxy_events_dropped_total",
            "Kubernetes Events that were too many, or not taken",
            sum(recorder.dropped for recorder in manager.recorders),
        )

    def _gates(self) -> Iterator[Metric]:
        readiness = self._manager.readiness
        if readiness is None:
            return
        yield GaugeMetricFamily(
            "kubeproxy_readiness_gates_waiting", "Pods that wait at their readiness gate", readiness.waiting
        )
        opened = CounterMetricFamily(
            "kubeproxy_readiness_gates_opened_total", "Readiness gates that were opened", labels=("reason",)
        )
        for reason in Reason:
            if reason is not Reason.WAITS:
                opened.add_metric((reason.value,), readiness.opened[reason.value])
        yield opened

    def _watches(self) -> Iterator[Metric]:
        behind = GaugeMetricFamily(
            "kubeproxy_watch_behind_seconds",
            "For how long changes of a resource may have been missed; 0 while a watch works",
            labels=("resource",),
        )
        for watch in self._manager.watches():
            behind.add_metric((watch.resource,), watch.behind_s)
        yield behind


def registry(manager: ControllerManager) -> CollectorRegistry:
    """Return a registry with the metrics of the manager and of its process."""
    made = CollectorRegistry()
    made.register(ManagerCollector(manager))
    ProcessCollector(registry=made)
    return made


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], found: Histogram) -> None:
    family.add_metric(labels, cumulative(found.bounds, found.counts), found.seconds)
