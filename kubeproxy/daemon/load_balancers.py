"""Answers load balancers at health check node ports, once the rules redirect to this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kubeproxy.daemon.host_state import HostFacts
from kubeproxy.daemon.service_events import Events
from kubeproxy.model import ServiceName
from kubeproxy.observability.health import ProxyHealth


class LoadBalancers:
    """The Services with a health check node port, and the servers that answer while `run` is running."""

    def __init__(self, health: ProxyHealth, events: Events, host_facts: HostFacts, taken: asyncio.Event) -> None:
        """`taken` is set when the rules redirect to this process. Load balancers get no answer before that."""
        self._health = health
        self._events = events
        self._host_facts = host_facts
        self._taken = taken
        self._services: Mapping[ServiceName, tuple[int, int]] = {}
        self._changed = asyncio.Event()

    def set_services(self, services: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Set the Services with a health check node port (see `ServiceHealthServers.sync`)."""
        self._services = services
        self._changed.set()

    def move(self) -> None:
        """Listen on the present addresses of this node."""
        self._changed.set()

    async def run(self) -> None:
        """Answer load balancers until cancelled."""
        await self._taken.wait()
        from kubeproxy.observability.http.service_health import ServiceHealthServers

        servers = ServiceHealthServers(
            health=self._health,
            addresses=self._host_facts.facts().node_addresses,
            on_failure=self._events.health_server_failed,
        )
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await servers.set_addresses(self._host_facts.facts().node_addresses)
                await servers.sync(self._services)
        finally:
            await servers.close()
