"""Renders a scrape as Prometheus text in slices, so that the event loop keeps running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import structlog
from prometheus_client import generate_latest

from kubeproxy.dataplane.interface import Counters, DataPlaneReadings
from kubeproxy.model import FrontendName
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.metrics.control_plane import Metrics
from kubeproxy.observability.metrics.traffic import Traffic
from kubeproxy.observability.picture import Picture
from kubeproxy.runtime.time_slice import TimeSlice

log = structlog.get_logger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of kube-proxy, which every scraper reads."""
SLICE_S: Final = 0.001
"""How many seconds of work are done between two yields to the event loop."""


CountersOf = Mapping[FrontendName, Counters]
"""The counters of all frontends."""


class Exposition:
    """Renders scrapes one at a time; concurrent scrapers wait for each other.

    `picture` returns the state of the control plane; it is called in the event loop's thread. If the data plane does
    not answer, the scrape has only the metrics of the control plane.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        data_plane: DataPlaneReadings,
        picture: Callable[[], Picture],
        with_kernel_traffic: Callable[[CountersOf], Awaitable[CountersOf]] | None = None,
    ) -> None:
        """`with_kernel_traffic` adds the connections of the kernel path to the data plane's counters."""
        self._metrics = metrics
        self._data_plane = data_plane
        self._picture = picture
        self._with_kernel_traffic = with_kernel_traffic
        self._traffic = Traffic()
        self._one_at_a_time = asyncio.Lock()
        self._log = RateLimitedLog(log)

    async def render(self) -> bytes:
        """Return the text of a scrape."""
        async with self._one_at_a_time:
            self._metrics.state.read(self._picture())
            traffic = await self._read_data_plane()
            # Listing /proc/self/fd takes 20 ms with 40,000 connections, so this runs in a thread. The computation
            # itself is short.
            parts = [await asyncio.to_thread(generate_latest, self._metrics.registry)]
            time_slice = TimeSlice(SLICE_S)
            for part in traffic:
                parts.append(part)
                await time_slice.offer()
        return b"".join(parts)

    async def _read_data_plane(self) -> Iterable[bytes]:
        serving = self._data_plane
        try:
            self._metrics.workers.see(await serving.worker_status(), restarts=serving.restarts)
            counters = await serving.counters()
            if self._with_kernel_traffic is not None:
                counters = await self._with_kernel_traffic(counters)
            return self._traffic.exposition(counters, await serving.ejected())
        except KubeproxyError as error:
            self._log.warning("data plane metrics missing", reason=str(error))
            return ()
