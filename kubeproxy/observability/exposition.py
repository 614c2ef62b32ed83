"""A scrape: everything there is to measure, as Prometheus text, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from prometheus_client import generate_latest

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import FrontendName
from kubeproxy.observability.metrics import Metrics
from kubeproxy.observability.traffic import Traffic
from kubeproxy.observability.views import Picture

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format that kube-proxy speaks, and every scraper reads."""


class Exposition:
    """Renders scrapes, one at a time: scrapers that come together wait for each other instead of taking turns on the
    loop. `counters` is the data plane's (``DataPlane.counters``), `picture` gives the state of the control plane; both
    are asked from the event loop's thread."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        counters: Callable[[], Awaitable[Mapping[FrontendName, Counters]]],
        picture: Callable[[], Picture],
    ) -> None:
        self._metrics = metrics
        self._counters = counters
        self._picture = picture
        self._traffic = Traffic()
        self._one_at_a_time = asyncio.Lock()

    async def render(self) -> bytes:
        """The whole text, as of now."""
        async with self._one_at_a_time:
            self._metrics.state.read(self._picture())
            # In a thread, because listing /proc/self/fd takes 20 ms with 40,000 connections; what is to be computed
            # beside it is little.
            parts = [await asyncio.to_thread(generate_latest, self._metrics.registry)]
            for part in self._traffic.exposition(await self._counters()):
                parts.append(part)
                await asyncio.sleep(0)
        return b"".join(parts)
