"""Periodic checks of the event loop's lag, the state of the workers, and ejected endpoints.

Each problem is logged at most once a minute. The health server shows problems of the proxy itself while they last.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import structlog

from kubeproxy.dataplane.interface import DataPlaneReadings, EjectedEndpoint, WorkerStatus
from kubeproxy.model import FrontendName, ServiceName, Target
from kubeproxy.observability.health import ProxyHealth, Reason
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.monitor.ejection_log import EjectionLog

CHECK_S: Final = 5.0
"""The number of seconds between two checks of the data plane."""
LAG_S: Final = 0.25
"""The length in seconds of the sleep that measures the loop's lag, which is how much longer the sleep really takes."""
FULL_S: Final = 120.0
"""For how many seconds every worker may lack descriptors before load balancers see the node as unhealthy. Shorter
shortages end by themselves, or an operator ends them."""
DESCRIPTORS_PER_CLIENT: Final = 2
REPEAT_S: Final = 60.0
"""The number of seconds between two log messages of the same problem. After a problem was last seen, it is also shown
for this long."""
MAX_NAMED: Final = 10
"""The largest number of endpoints that one check logs by name. Further ones are only counted, as when a node dies with
all its pods."""

LOGGED_WHERE_FOUND: Final = frozenset((Reason.KUBERNETES, Reason.MANIFESTS, Reason.ACCESS_LOG))
"""The reasons that this check does not log, because the part that finds the problem logs it in more detail."""

_DIGITS: Final = re.compile(r"\d+")
"""Matches the digits of a message. Two messages that differ only in digits are the same problem."""

log = structlog.get_logger(__name__)


class _Growth:
    """Tells by how much a counter has grown since the last check."""

    def __init__(self, read: Callable[[], int], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._seen = read()
        self._grew_at: float | None = None

    def look(self) -> int:
        """Read the counter. Return by how much it has grown since the last call, or at the first call since
        construction."""
        before, self._seen = self._seen, self._read()
        if self._seen > before:
            self._grew_at = self._clock()
        return self._seen - before

    @property
    def lately(self) -> bool:
        """Return whether a call of `look` within the last `REPEAT_S` seconds has found growth."""
        return self._grew_at is not None and self._clock() - self._grew_at <= REPEAT_S


class Monitor:
    """Runs `measure_lag` and `run` until cancelled.

    `on_lost` is called for an endpoint that has been ejected for `LASTS_S` seconds. `is_endpoint` returns whether a
    target is still an endpoint of a frontend. `checks` are functions of other parts that return a problem or None.
    `clock` is monotonic.
    """

    def __init__(
        self,
        *,
        data_plane: DataPlaneReadings,
        health: ProxyHealth,
        metrics: Metrics,
        is_endpoint: Callable[[FrontendName, Target], bool],
        on_lost: Callable[[ServiceName, Target], None] = lambda service, target: None,
        checks: Mapping[Reason, Callable[[], str | None]] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._data_plane = data_plane
        self._health = health
        self._metrics = metrics
        self._checks = checks
        self._clock = clock
        self._sleep = sleep
        self._log = RateLimitedLog(log, interval_s=REPEAT_S, clock=clock)
        self._accept_paused = _Growth(lambda: metrics.workers.accept_paused, clock)
        self._log_skipped = _Growth(lambda: metrics.workers.log_skipped, clock)
        self._memory_shortages = _Growth(lambda: metrics.workers.memory_shortages, clock)
        self._ports_exhausted = _Growth(lambda: metrics.workers.ports_exhausted, clock)
        self._endpoint_health = EjectionLog(is_endpoint)
        self._on_lost = on_lost
        self._looped = _Growth(lambda: metrics.workers.looped, clock)
        self._full_since: float | None = None

    async def run(self) -> None:
        """Check the data plane every few seconds."""
        while True:
            await self.check()
            await self._sleep(CHECK_S)

    async def measure_lag(self) -> None:
        """Measure repeatedly how late the event loop runs a timer."""
        while True:
            before = self._clock()
            await self._sleep(LAG_S)
            self._metrics.lagged(max(0.0, self._clock() - before - LAG_S))

    async def check(self) -> None:
        """Check the data plane once."""
        worker_status = await self._data_plane.worker_status()
        problem = self._data_plane.problem
        self._metrics.workers.see(worker_status, restarts=self._data_plane.restarts)
        self._check_memory()
        self._check_ports()
        self._check_loops()
        self._check_descriptors(worker_status)
        self._check_workers(problem)
        self._check_access_log()
        self._check_others()
        self._check_endpoints(await self._data_plane.ejected())

    def _check_endpoints(self, ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]) -> None:
        changes = self._endpoint_health.update(ejected, self._clock())
        for name, one in changes.ejected[:MAX_NAMED]:
            log.warning(
                "endpoint ejected",
                service=str(name),
                endpoint=str(one.target),
                reason=one.reason,
                failures=one.failures,
            )
        if more := len(changes.ejected[MAX_NAMED:]):
            log.warning("more endpoints ejected", endpoints=more, remedy="list all with `kubeproxy status`")
        for name, target, lasted_s in changes.restored[:MAX_NAMED]:
            log.info(
                "endpoint restored",
                service=str(name),
                endpoint=str(target),
                after_s=round(lasted_s, 1),
            )
        if more := len(changes.restored[MAX_NAMED:]):
            log.info("more endpoints restored", endpoints=more)
        for name, target, lasted_s in changes.removed[:MAX_NAMED]:
            log.info(
                "ejected endpoint removed from its Service",
                service=str(name),
                endpoint=str(target),
                after_s=round(lasted_s, 1),
            )
        for name, target in changes.lasting[:MAX_NAMED]:
            self._on_lost(name.service, target)
        if more := len(changes.removed[MAX_NAMED:]):
            log.info("more ejected endpoints removed", endpoints=more)

    def _check_memory(self) -> None:
        if self._memory_shortages.look():
            self._log.warning(
                "no memory for new clients",
                remedy="raise the limit on address space (ulimit -v, LimitAS=), or close connections",
            )
        short = self._memory_shortages.lately
        self._health.degraded(Reason.MEMORY, "no memory for new clients" if short else None)

    def _check_ports(self) -> None:
        more = self._ports_exhausted.look()
        if more:
            self._log.warning(
                "no ephemeral port for a dial",
                times=more,
                remedy="widen net.ipv4.ip_local_port_range, or give the Service more endpoints",
            )

    def _check_descriptors(self, worker_status: Sequence[WorkerStatus]) -> None:
        more = self._accept_paused.look()
        short_of_memory = self._memory_shortages.lately
        if more and not short_of_memory:
            self._log.warning(
                "no descriptors for new clients",
                times=more,
                descriptors=sum(status.descriptors for status in worker_status),
                limit=sum(status.descriptors_limit for status in worker_status),
                remedy="raise the limit on open files (LimitNOFILE=, ulimit -n), or close connections",
            )
        short = self._accept_paused.lately and not short_of_memory
        self._health.degraded(Reason.DESCRIPTORS, "no descriptors for new clients" if short else None)
        self._look_whether_full(worker_status)

    def _look_whether_full(self, worker_status: Sequence[WorkerStatus]) -> None:
        """Record that the node is unhealthy if every worker has lacked descriptors for `FULL_S` seconds, because then
        no client is served."""
        if not worker_status or any(
            status.descriptors + DESCRIPTORS_PER_CLIENT <= status.descriptors_limit for status in worker_status
        ):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = self._clock()
        full = self._full_since is not None and self._clock() - self._full_since >= FULL_S
        self._health.exhausted("no client can be served: all descriptors are in use" if full else None)

    def _check_loops(self) -> None:
        more = self._looped.look()
        if more:
            self._log.warning(
                "connections loop through proxies",
                times=more,
                cause="an endpoint is a node port or another address of a Service, here or on another node",
                remedy='correct the endpoints of the Service in kubeproxy_connections_failed_total{reason="loop"}',
            )

    def _check_workers(self, problem: str | None) -> None:
        self._health.degraded(Reason.WORKERS, problem)
        if problem is not None:
            self._log.error("data plane degraded", reason=problem)
        else:
            self._log.reset("data plane degraded")

    def _check_access_log(self) -> None:
        more = self._log_skipped.look()
        if more:
            self._log.warning("access log skipped connections", connections=more)
        skips = self._log_skipped.lately
        problem = "the access log skips connections: too many end at once" if skips else None
        self._health.degraded(Reason.ACCESS_LOG, problem, part="skipped")

    def _check_others(self) -> None:
        for reason, check in self._checks.items():
            problem = check()
            self._health.degraded(reason, problem)
            if problem is not None and reason not in LOGGED_WHERE_FOUND:
                self._log.warning(problem, key=_DIGITS.sub("", problem))
