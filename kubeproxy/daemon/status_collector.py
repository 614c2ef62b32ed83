"""Collects the data of the status pages and of traces from the daemon's parts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from aiohttp import web

from kubeproxy.daemon.connection_trace import Tracer
from kubeproxy.daemon.kernel_traffic import KernelTraffic
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.picture import ConfigurationState, Picture
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.recent_warnings import RecentWarnings
from kubeproxy.observability.status.routes import status_routes
from kubeproxy.observability.status.status_service import StatusService
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.proxier import Proxier


class StatusCollector:
    """Reads every part and changes none. `run` it while the daemon lives; `routes` belong on the metrics port."""

    def __init__(
        self,
        *,
        node: str,
        began: float,
        proxier: Proxier,
        data_plane: DataPlane,
        health: ProxyHealth,
        picture: Callable[[], Picture],
        facts: Callable[[], NodeFacts],
        recent_warnings: RecentWarnings,
        configuration: Callable[[], ConfigurationState],
        why_not_served: Callable[[str, str], str],
        kernel_traffic: KernelTraffic,
    ) -> None:
        self._node = node
        self._data_plane = data_plane
        self._health = health
        self._picture = picture
        self._began = began
        self._configuration = configuration
        self._why_not_served = why_not_served
        self._kernel_traffic = kernel_traffic
        self._board = StatusService(
            look=self._look, candidates=proxier.view.candidates, recent_warnings=recent_warnings.newest_first
        )
        self._tracer = Tracer(proxier=proxier, data_plane=data_plane, facts=facts, rescue=lambda: picture().rescue)

    def routes(self) -> list[web.RouteDef]:
        """The routes of the status pages."""
        return status_routes(self._board, self._tracer)

    async def run(self) -> None:
        """Take samples while a status page is open, until cancelled."""
        await self._board.run()

    async def _look(self) -> Observation:
        counters, ejected = await self._data_plane.counters(), await self._data_plane.ejected()
        worker_status = await self._data_plane.worker_status()
        counters = await self._kernel_traffic.added_to(counters)
        now, picture = asyncio.get_running_loop().time(), self._picture()
        return Observation(
            now=now,
            wall=time.time(),
            node=self._node,
            pid=os.getpid(),
            began=self._began,
            health=self._health.at(time.monotonic()),
            proxier=picture.proxier,
            counters=counters,
            worker_status=worker_status,
            ejected=ejected,
            restarts=self._data_plane.restarts,
            watches=picture.watches,
            manifests=picture.manifests,
            configuration=self._configuration(),
            why_not_served=self._why_not_served,
            open_to={} if picture.draining is None else picture.draining.open,
            data_path=picture.data_path,
            rescue=picture.rescue,
            stale=picture.stale,
            kernel_flows=picture.kernel_flows,
        )
