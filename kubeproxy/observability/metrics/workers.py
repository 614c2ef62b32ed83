"""The metrics of the workers, with sums that continue when a worker is replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kubeproxy.dataplane.interface import DIAL_BUCKETS_S, WorkerStatus
from kubeproxy.runtime.histogram import cumulative

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Life = tuple[int, int, float]
"""The identity of a worker process: worker number, process id and start time."""


class Workers(Collector):
    """Collects the metrics of the workers from the status given to `see`.

    A replacement has the number of the worker that it replaces, so the number of series does not grow when workers die.
    """

    def __init__(self) -> None:
        self._now: Sequence[WorkerStatus] = ()
        self._restarts = 0
        self._numbers: set[int] = set()
        self._last: dict[Life, WorkerStatus] = {}
        self._dials = (0,) * (len(DIAL_BUCKETS_S) + 1)
        self._dial_seconds = 0.0
        self.accept_paused = 0
        """How often workers have stopped accepting for lack of descriptors or memory, since this process started."""
        self.log_skipped = 0
        """The number of connections missing in the access log, because too many ended at once."""
        self.memory_shortages = 0
        """The total of the workers' counts of memory shortages. It grows while there is no memory for further
        clients."""
        self.ports_exhausted = 0
        """How many dials have failed because all local ports towards the endpoint were in use."""
        self.looped = 0
        """The number of connections and datagrams that were refused because they looped through proxies."""
        self.adopted = 0
        """The number of connections and UDP sessions taken over from another instance."""

    def see(self, worker_status: Sequence[WorkerStatus], *, restarts: int = 0) -> None:
        """Record the present status of all workers. Call this in the event loop's thread."""
        lives: dict[Life, WorkerStatus] = {}
        for status in worker_status:
            life = (status.number, status.pid, status.began)
            before = self._last.get(life)
            self._dials = tuple(map(add, self._dials, map(sub, status.dials, before.dials) if before else status.dials))
            self._dial_seconds += status.dial_seconds - (before.dial_seconds if before else 0.0)
            self.accept_paused += status.accept_paused - (before.accept_paused if before else 0)
            self.log_skipped += status.log_skipped - (before.log_skipped if before else 0)
            self.memory_shortages += status.memory_shortages - (before.memory_shortages if before else 0)
            self.ports_exhausted += status.ports_exhausted - (before.ports_exhausted if before else 0)
            self.looped += status.looped - (before.looped if before else 0)
            self.adopted += status.adopted - (before.adopted if before else 0)
            self._numbers.add(status.number)
            lives[life] = status
        self._now, self._last = worker_status, lives
        self._restarts = restarts

    def skip_log(self, connections: int) -> None:
        """Count connections of the kernel path that are missing in the access log, because too many ended at once."""
        self.log_skipped += connections

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last status, for prometheus_client."""
        return [*self._sums(), *self._by_worker()]

    def _sums(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "kubeproxy_worker_restarts_total", "Workers that died and were replaced", self._restarts
        )
        yield CounterMetricFamily(
            "kubeproxy_accept_paused_total",
            "How often accept paused for lack of descriptors or memory",
            self.accept_paused,
        )
        yield CounterMetricFamily(
            "kubeproxy_memory_shortages_total",
            "Checks (about one a second) that found no memory for further clients",
            self.memory_shortages,
        )
        yield CounterMetricFamily(
            "kubeproxy_ephemeral_ports_exhausted_total",
            "Dials that failed because all ports of this host towards the endpoint were in use",
            self.ports_exhausted,
        )
        yield CounterMetricFamily(
            "kubeproxy_access_log_skipped_connections_total",
            "Connections missing in the access log, because too many ended at once",
            self.log_skipped,
        )
        yield CounterMetricFamily(
            "kubeproxy_moved_connections_total",
            "Connections and UDP sessions taken over from another instance of kubeproxy, at a takeover or a re-exec",
            self.adopted,
        )
        yield HistogramMetricFamily(
            "kubeproxy_dial_duration_seconds",
            "Time from accept to an endpoint's answer",
            buckets=cumulative(DIAL_BUCKETS_S, self._dials),
            sum_value=self._dial_seconds,
        )

    def _by_worker(self) -> Iterator[Metric]:
        labels = ("worker",)
        up = GaugeMetricFamily("kubeproxy_worker_up", "Whether the worker runs", labels=labels)
        serving = {status.number for status in self._now}
        for number in sorted(self._numbers):
            up.add_metric((str(number),), number in serving)
        began = GaugeMetricFamily("kubeproxy_worker_start_time_seconds", "Start time of the worker", labels=labels)
        connections = GaugeMetricFamily(
            "kubeproxy_worker_connections", "Open connections, including those being dialed", labels=labels
        )
        sessions = GaugeMetricFamily("kubeproxy_udp_sessions", "Open UDP sessions", labels=labels)
        used = GaugeMetricFamily("kubeproxy_descriptors_used", "Descriptors in use on the byte path", labels=labels)
        limit = GaugeMetricFamily(
            "kubeproxy_descriptors_limit", "Limit of descriptors for the byte path", labels=labels
        )
        lag = GaugeMetricFamily(
            "kubeproxy_worker_loop_lag_seconds",
            "Longest turn of the worker's loop in the last minute: how long a ready byte may have waited",
            labels=labels,
        )
        cpu = CounterMetricFamily("kubeproxy_worker_cpu_seconds_total", "CPU time of a worker process", labels=labels)
        memory = GaugeMetricFamily(
            "kubeproxy_worker_resident_memory_bytes",
            "Resident memory of a worker process",
            labels=labels,
        )
        for status in self._now:
            label = (str(status.number),)
            began.add_metric(label, status.began)
            connections.add_metric(label, status.connections)
            sessions.add_metric(label, status.udp_sessions)
            used.add_metric(label, status.descriptors)
            limit.add_metric(label, status.descriptors_limit)
            lag.add_metric(label, status.lag_s)
            if status.pid != os.getpid() and (spent := consumption(status.pid)) is not None:
                cpu.add_metric(label, spent[0])
                memory.add_metric(label, spent[1])
        yield from (up, began, connections, sessions, used, limit, lag, cpu, memory)


def consumption(pid: int) -> tuple[float, int] | None:
    """Return the CPU seconds and resident bytes of a process (proc(5)), or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # The command name before it may contain any character.
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES
