"""The pulse of the process: how late the control process's loop is, and whether those that serve, and the endpoints
that they serve, are well. What an operator has to know of it is said in the log, at most once a minute; what is our
own trouble is shown by the health server, too, while it lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import structlog

from kubeproxy.dataplane.interface import EjectedEndpoint, WorkerStatus
from kubeproxy.model import FrontendName
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.monitor.endpoint_health import EndpointHealthLog
from kubeproxy.observability.views import Serving

LOOK_S: Final = 5.0
"""How often those that serve are asked."""
BEAT_S: Final = 0.25
"""How often the loop's lag is measured: a sleep of so long, and how much longer it was."""
FULL_S: Final = 120.0
"""How long all descriptors may be in use before load balancers are told to send clients elsewhere: what ends by itself
or by an operator's help ends sooner."""
DESCRIPTORS_PER_CLIENT: Final = 2
REPEAT_S: Final = 60.0
"""How often the same trouble is said, and how long it is shown after it was last seen."""
MOST_AT_ONCE: Final = 10
"""How many endpoints one look names; when a node dies with all its pods, the rest are counted."""

log = structlog.get_logger(__name__)


class Monitor:
    """Runs `beat` and `look` until cancelled. `elsewhere`: further parts by name, each of which says what is wrong with
    it, if anything. `clock` is a monotonic one."""

    def __init__(
        self,
        *,
        data_plane: Serving,
        health: ProxyHealth,
        metrics: Metrics,
        elsewhere: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._data_plane = data_plane
        self._health = health
        self._metrics = metrics
        self._elsewhere = elsewhere
        self._clock = clock
        self._look_s = look_s
        self._sleep = sleep
        self._log = RateLimitedLog(log, interval_s=REPEAT_S, clock=clock)
        self._turned_away = metrics.workers.accept_paused
        self._unlogged = metrics.workers.log_skipped
        self._memory_shortages = metrics.workers.memory_shortages
        self._portless = metrics.workers.ports_exhausted
        self._illness = EndpointHealthLog()
        self._looped = metrics.workers.looped
        self._held_back_at: float | None = None
        self._full_since: float | None = None
        self._short_at: float | None = None

    async def look(self) -> None:
        """Ask those that serve how they are, every few seconds."""
        while True:
            await self.look_once()
            await self._sleep(self._look_s)

    async def beat(self) -> None:
        """Measure how late this loop comes to what is due."""
        while True:
            before = self._clock()
            await self._sleep(BEAT_S)
            self._metrics.lagged(max(0.0, self._clock() - before - BEAT_S))

    async def look_once(self) -> None:
        """Ask once."""
        worker_status = await self._data_plane.worker_status()
        problem = self._data_plane.problem
        self._metrics.workers.see(worker_status, restarts=self._data_plane.restarts, problem=problem)
        self._look_at_memory()
        self._look_at_ports()
        self._look_at_loops()
        self._look_at_descriptors(worker_status)
        self._look_at_workers(problem)
        self._look_at_access_log()
        self._look_elsewhere()
        self._check_endpoints(await self._data_plane.ejected())

    def _check_endpoints(self, ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]) -> None:
        news = self._illness.look(ejected, self._clock())
        for name, one in news.fallen[:MOST_AT_ONCE]:
            log.warning(
                "an endpoint does not answer, and is passed over",
                service=str(name),
                endpoint=str(one.target),
                reason=one.reason,
                failures=one.failures,
            )
        if more := len(news.fallen[MOST_AT_ONCE:]):
            log.warning("more endpoints do not answer", endpoints=more, remedy="`kubeproxy status` has all")
        for name, target, lasted_s in news.over[:MOST_AT_ONCE]:
            log.info(
                "an endpoint is no longer passed over",
                service=str(name),
                endpoint=str(target),
                after_s=round(lasted_s, 1),
            )
        if more := len(news.over[MOST_AT_ONCE:]):
            log.info("more endpoints are no longer passed over", endpoints=more)

    def _look_at_memory(self) -> None:
        now = self._clock()
        more = self._metrics.workers.memory_shortages - self._memory_shortages
        self._memory_shortages = self._metrics.workers.memory_shortages
        if more:
            self._short_at = now
            self._log.warning(
                "clients have to wait for want of memory",
                remedy="raise the limit on address space (ulimit -v, LimitAS=), or find who keeps so many open",
            )
        elif self._short_at is not None and now - self._short_at > REPEAT_S:
            self._short_at = None
        short = self._short_at is not None
        self._health.degraded("memory", "clients have to wait for want of memory" if short else None)

    def _look_at_ports(self) -> None:
        more = self._metrics.workers.ports_exhausted - self._portless
        self._portless = self._metrics.workers.ports_exhausted
        if more:
            self._log.warning(
                "endpoints cannot be dialed: all ports towards them are in use",
                times=more,
                remedy="widen net.ipv4.ip_local_port_range, or give the Service more endpoints",
            )

    def _look_at_descriptors(self, worker_status: Sequence[WorkerStatus]) -> None:
        now = self._clock()
        more = self._metrics.workers.accept_paused - self._turned_away
        self._turned_away = self._metrics.workers.accept_paused
        if more and self._short_at is None:
            self._held_back_at = now
            self._log.warning(
                "clients have to wait for want of descriptors",
                times=more,
                descriptors=sum(it.descriptors for it in worker_status),
                limit=sum(it.descriptors_limit for it in worker_status),
                remedy="raise the limit on open files (LimitNOFILE=, ulimit -n), or find who keeps so many open",
            )
        if self._held_back_at is not None:
            over = now - self._held_back_at > REPEAT_S
            self._health.degraded("descriptors", None if over else "clients have to wait for want of descriptors")
            if over:
                self._held_back_at = None

        self._look_whether_full(worker_status, now)

    def _look_whether_full(self, worker_status: Sequence[WorkerStatus], now: float) -> None:
        """Where each process that serves has no descriptor left for long, no client of any Service is served."""
        if not worker_status or any(
            it.descriptors + DESCRIPTORS_PER_CLIENT <= it.descriptors_limit for it in worker_status
        ):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        full = self._full_since is not None and now - self._full_since >= FULL_S
        self._health.exhausted("no client can be served: all descriptors are in use" if full else None)

    def _look_at_loops(self) -> None:
        more = self._metrics.workers.looped - self._looped
        self._looped = self._metrics.workers.looped
        if more:
            self._log.warning(
                "connections come through too many proxies",
                times=more,
                cause="an endpoint is a node port or another address of a Service, here or on another node",
                remedy='kubeproxy_connections_failed_total{reason="loop"} names the Service: correct its endpoints',
            )

    def _look_at_workers(self, problem: str | None) -> None:
        self._health.degraded("data plane", problem)
        if problem is not None:
            self._log.error("the data plane does not serve as it should", reason=problem)
        else:
            self._log.over("the data plane does not serve as it should")

    def _look_at_access_log(self) -> None:
        more = self._metrics.workers.log_skipped - self._unlogged
        self._unlogged = self._metrics.workers.log_skipped
        if more:
            self._log.warning("the access log has gaps: too many connections ended at once", connections=more)

    def _look_elsewhere(self) -> None:
        for part, ask in self._elsewhere.items():
            complaint = ask()
            self._health.degraded(part, complaint)
            if complaint is not None:
                self._log.warning(complaint)
