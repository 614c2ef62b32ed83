"""How the processes that serve are doing, as metrics: read when somebody scrapes, and added up so that the sums outlive
the processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kubeproxy.dataplane.interface import DIAL_BUCKETS_S, WorkerStatus

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Life = tuple[int, int, float]
"""One process's life: its place, its pid, and when it began."""


class Workers(Collector):
    """Takes what `see` is shown, as often as it is shown, and tells it when a scraper asks.

    A worker's number is its place, which its replacement inherits: series do not grow in number however often one dies.
    """

    def __init__(self) -> None:
        self._now: Sequence[WorkerStatus] = ()
        self._restarts = 0
        self._troubled = False
        self._known: set[int] = set()
        self._last: dict[Life, WorkerStatus] = {}
        self._dials = (0,) * (len(DIAL_BUCKETS_S) + 1)
        self._dial_seconds = 0.0
        self.accept_paused = 0
        """How often a client had to wait for want of descriptors, since this process began."""
        self.log_skipped = 0
        """Connections that the access log has not got, because too many ended at once."""
        self.memory_shortages = 0
        """Grows while there is no memory for more clients."""
        self.ports_exhausted = 0
        """Dials that failed because all of this host's ports towards the endpoint were in use."""
        self.looped = 0
        """Connections and datagrams that had come through too many proxies."""

    def see(self, worker_status: Sequence[WorkerStatus], *, restarts: int = 0, problem: str | None = None) -> None:
        """So they are now. Belongs to the event loop's thread."""
        lives: dict[Life, WorkerStatus] = {}
        for it in worker_status:
            life = (it.number, it.pid, it.began)
            before = self._last.get(life)
            self._dials = tuple(map(add, self._dials, map(sub, it.dials, before.dials) if before else it.dials))
            self._dial_seconds += it.dial_seconds - (before.dial_seconds if before else 0.0)
            self.accept_paused += it.accept_paused - (before.accept_paused if before else 0)
            self.log_skipped += it.log_skipped - (before.log_skipped if before else 0)
            self.memory_shortages += it.memory_shortages - (before.memory_shortages if before else 0)
            self.ports_exhausted += it.ports_exhausted - (before.ports_exhausted if before else 0)
            self.looped += it.looped - (before.looped if before else 0)
            self._known.add(it.number)
            lives[life] = it
        self._now, self._last = worker_status, lives
        self._restarts, self._troubled = restarts, problem is not None

    def collect(self) -> Iterable[Metric]:
        """As prometheus_client asks for it."""
        return [*self._sums(), *self._each()]

    def _sums(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "kubeproxy_worker_restarts_total", "Processes that served, died, and were replaced", self._restarts
        )
        yield GaugeMetricFamily(
            "kubeproxy_data_plane_degraded",
            "1 while it does not serve as it should: a worker keeps dying",
            self._troubled,
        )
        yield CounterMetricFamily(
            "kubeproxy_accept_paused_total",
            "How often a client had to wait to be accepted for want of descriptors or memory",
            self.accept_paused,
        )
        yield CounterMetricFamily(
            "kubeproxy_memory_shortages_total",
            "Grows about once a second while there is no memory for more clients",
            self.memory_shortages,
        )
        yield CounterMetricFamily(
            "kubeproxy_ephemeral_ports_exhausted_total",
            "Dials that failed because all of this host's ports towards the endpoint were in use",
            self.ports_exhausted,
        )
        yield CounterMetricFamily(
            "kubeproxy_access_log_skipped_connections_total",
            "Connections that the access log has not got, because too many ended at once",
            self.log_skipped,
        )
        buckets, count = list[tuple[str, float]](), 0
        for bound, number in zip((*map(str, DIAL_BUCKETS_S), "+Inf"), self._dials, strict=True):
            count += number
            buckets.append((bound, count))
        yield HistogramMetricFamily(
            "kubeproxy_dial_duration_seconds",
            "From a client's arrival to an endpoint's answer",
            buckets=buckets,
            sum_value=self._dial_seconds,
        )

    def _each(self) -> Iterator[Metric]:
        labels = ("worker",)
        up = GaugeMetricFamily("kubeproxy_worker_up", "Whether the process serves", labels=labels)
        serving = {it.number for it in self._now}
        for number in sorted(self._known):
            up.add_metric((str(number),), number in serving)
        began = GaugeMetricFamily("kubeproxy_worker_start_time_seconds", "When it began", labels=labels)
        connections = GaugeMetricFamily(
            "kubeproxy_worker_connections", "Open now, those being dialed for included", labels=labels
        )
        sessions = GaugeMetricFamily("kubeproxy_udp_sessions", "UDP sessions now", labels=labels)
        used = GaugeMetricFamily("kubeproxy_descriptors_used", "In use on the byte path", labels=labels)
        limit = GaugeMetricFamily("kubeproxy_descriptors_limit", "How many the byte path may use", labels=labels)
        lag = GaugeMetricFamily(
            "kubeproxy_worker_loop_lag_seconds",
            "The longest turn of its loop within the last minute: how long a ready byte may have waited",
            labels=labels,
        )
        cpu = CounterMetricFamily(
            "kubeproxy_worker_cpu_seconds_total", "CPU time of a worker that is a process of its own", labels=labels
        )
        memory = GaugeMetricFamily(
            "kubeproxy_worker_resident_memory_bytes",
            "Memory of a worker that is a process of its own",
            labels=labels,
        )
        for it in self._now:
            label = (str(it.number),)
            began.add_metric(label, it.began)
            connections.add_metric(label, it.connections)
            sessions.add_metric(label, it.udp_sessions)
            used.add_metric(label, it.descriptors)
            limit.add_metric(label, it.descriptors_limit)
            lag.add_metric(label, it.lag_s)
            if it.pid != os.getpid() and (spent := consumption(it.pid)) is not None:
                cpu.add_metric(label, spent[0])
                memory.add_metric(label, spent[1])
        yield from (up, began, connections, sessions, used, limit, lag, cpu, memory)


def consumption(pid: int) -> tuple[float, int] | None:
    """A process's CPU seconds and resident bytes (proc(5)); None: there is no such process any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command's name before may hold anything
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES
