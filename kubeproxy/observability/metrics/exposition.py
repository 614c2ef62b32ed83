"""A scrape: everything there is to measure, as Prometheus text, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import structlog
from prometheus_client import generate_latest

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import FrontendName
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.metrics.traffic import Traffic
from kubeproxy.observability.views import Picture, Serving

log = structlog.get_logger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format that kube-proxy speaks, and every scraper reads."""


class Measured(Serving, Protocol):
    """What a scrape asks of the data plane (`kubeproxy.dataplane.interface.DataPlane`)."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """A snapshot."""

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """The endpoints that are passed over now."""


class Exposition:
    """Renders scrapes, one at a time: scrapers that come together wait for each other instead of taking turns on the
    loop. `picture` gives the state of the control plane; it is asked from the event loop's thread. Where the data plane
    gives no answer, the control plane's half is told all the same."""

    def __init__(self, metrics: Metrics, *, data_plane: Measured, picture: Callable[[], Picture]) -> None:
        self._metrics = metrics
        self._data_plane = data_plane
        self._picture = picture
        self._traffic = Traffic()
        self._one_at_a_time = asyncio.Lock()
        self._log = RateLimitedLog(log)

    async def render(self) -> bytes:
        """The whole text, as of now."""
        async with self._one_at_a_time:
            self._metrics.state.read(self._picture())
            traffic = await self._ask_data_plane()
            # In a thread, because listing /proc/self/fd takes 20 ms with 40,000 connections; what is to be computed
            # beside it is little.
            parts = [await asyncio.to_thread(generate_latest, self._metrics.registry)]
            for part in traffic:
                parts.append(part)
                await asyncio.sleep(0)
        return b"".join(parts)

    async def _ask_data_plane(self) -> Iterable[bytes]:
        serving = self._data_plane
        try:
            self._metrics.workers.see(await serving.worker_status(), restarts=serving.restarts, problem=serving.problem)
            return self._traffic.exposition(await serving.counters(), await serving.ejected())
        except KubeproxyError as error:
            self._log.warning("the data plane gives no answer; its metrics are missing", reason=str(error))
            return ()
