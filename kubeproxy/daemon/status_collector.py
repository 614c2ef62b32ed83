"""Collects the data of the status pages and of traces from the daemon's parts."""

from __future__ import annotations

import asyncio
import os
import time

from aiohttp import web

from kubeproxy.daemon.connection_trace import Tracer
from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.recent_warnings import RecentWarnings
from kubeproxy.observability.status.routes import status_routes
from kubeproxy.observability.status.status_service import StatusService


class StatusCollector:
    """Reads every part and changes none. Run `run` while the daemon lives. `routes` belong to the metrics server."""

    def __init__(self, parts: ShownParts, recent_warnings: RecentWarnings) -> None:
        self._parts = parts
        proxier = parts.control_plane.proxier
        self._status_service = StatusService(
            look=self._look, candidates=proxier.view.candidates, recent_warnings=recent_warnings.newest_first
        )
        self._tracer = Tracer(
            proxier=proxier,
            data_plane=parts.data_plane,
            facts=parts.kernel.host_facts.facts,
            rescue=parts.kernel_path.rescue.state,
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the status pages."""
        return status_routes(self._status_service, self._tracer)

    async def run(self) -> None:
        """Take samples while status pages are open, until cancelled."""
        await self._status_service.run()

    async def _look(self) -> Observation:
        parts, data_plane = self._parts, self._parts.data_plane
        counters, ejected = await data_plane.counters(), await data_plane.ejected()
        worker_status, open_by_endpoint = await data_plane.worker_status(), await data_plane.open_by_endpoint()
        counters = await parts.kernel_path.traffic.added_to(counters)
        now, picture = asyncio.get_running_loop().time(), parts.picture()
        return Observation(
            now=now,
            wall=time.time(),
            node=parts.kernel.host_facts.node_name,
            pid=os.getpid(),
            began=parts.process.began,
            health=parts.reporting.health.at(time.monotonic()),
            proxier=picture.proxier,
            counters=counters,
            worker_status=worker_status,
            ejected=ejected,
            restarts=data_plane.restarts,
            watches=picture.watches,
            manifests=picture.manifests,
            configuration=parts.configuration.state,
            why_not_served=parts.control_plane.sources.why_not_served,
            open_by_endpoint=open_by_endpoint,
            open_by_kernel=parts.kernel_path.flows.open_by_endpoint,
            open_to={} if picture.draining is None else picture.draining.open,
            data_path=picture.data_path,
            rescue=picture.rescue,
            stale=picture.stale,
            kernel_flows=picture.kernel_flows,
        )
