"""Brings together what the status and the trace are made of: the daemon's parts, and the pages that show them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from aiohttp import web

from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.status_board import Board
from kubeproxy.observability.status_incidents import Incidents
from kubeproxy.observability.status_routes import status_routes
from kubeproxy.observability.status_sight import Sight
from kubeproxy.observability.views import Picture
from kubeproxy.proxier.facts import NodeFacts
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.tracer import Tracer


class Onlooker:
    """Sees everything and changes nothing. `run` while the daemon lives; `routes` belong on the metrics port."""

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
        incidents: Incidents,
    ) -> None:
        self._node = node
        self._data_plane = data_plane
        self._health = health
        self._picture = picture
        self._began = began
        self._board = Board(look=self._look, candidates=proxier.candidates, incidents=incidents.newest_first)
        self._tracer = Tracer(proxier=proxier, data_plane=data_plane, facts=facts)

    def routes(self) -> list[web.RouteDef]:
        """What the metrics server is to answer besides."""
        return status_routes(self._board, self._tracer)

    async def run(self) -> None:
        """Take samples while somebody looks, until cancelled."""
        await self._board.run()

    async def _look(self) -> Sight:
        counters, ill = await self._data_plane.counters(), await self._data_plane.ill()
        vitals = await self._data_plane.vitals()
        now, picture = asyncio.get_running_loop().time(), self._picture()
        return Sight(
            now=now,
            wall=time.time(),
            node=self._node,
            pid=os.getpid(),
            began=self._began,
            health=self._health.at(time.monotonic()),
            proxier=picture.proxier,
            counters=counters,
            vitals=vitals,
            ill=ill,
            restarts=self._data_plane.restarts,
            trouble=self._data_plane.trouble,
            watches=picture.watches,
            manifests=picture.manifests,
        )
