"""The daemon's HTTP servers: health, metrics with status pages, health check node ports of load balancers.

Clients do not wait for them, so `open` imports what has to do with HTTP (`http_pages`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from kubeproxy.config.dump import go_data
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.host_facts import HostFacts
from kubeproxy.daemon.kernel_flows import KernelFlows
from kubeproxy.daemon.service_events import Events
from kubeproxy.dataplane.interface import DataPlane
from kubeproxy.model import Address, Protocol, ServiceName
from kubeproxy.netfilter.port_holders import kube_proxy_process
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.picture import ConfigurationState, Picture
from kubeproxy.observability.status.recent_warnings import RecentWarnings
from kubeproxy.proxier.host_ports import FindHolders
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.runtime.keep_running import kept_running
from kubeproxy.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from kubeproxy.observability.http.server import HttpServer


class HttpServers:
    """The HTTP servers, closed until `open`. `release_ports` releases the ports for a new instance."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        *,
        configuration_state: Callable[[], ConfigurationState],
        why_not_served: Callable[[str, str], str],
        find_holders: FindHolders,
        host_facts: HostFacts,
        data_plane: DataPlane,
        health: ProxyHealth,
        metrics: Metrics,
        events: Events,
        taken: asyncio.Event,
        tasks: TaskSet,
    ) -> None:
        """`configuration` returns the one in force. `taken`: load balancers get no answer before it is set."""
        self._configuration = configuration
        self._configuration_state = configuration_state
        self._why_not_served = why_not_served
        self._find_holders = find_holders
        self._host_facts = host_facts
        self._data_plane = data_plane
        self._health = health
        self._metrics = metrics
        self._events = events
        self._taken = taken
        self._tasks = tasks
        self._recent_warnings = RecentWarnings()
        self._recent_warnings.attach()
        self._servers: Sequence[HttpServer] = ()
        self._answering: asyncio.Task[None] | None = None
        self.opened = asyncio.Event()
        """Set when the HTTP servers answer, or wait for an address that another process has."""
        self._asked_after: Mapping[ServiceName, tuple[int, int]] = {}
        self._news = asyncio.Event()
        """Set when the answers to load balancers have changed."""

    async def open(
        self,
        proxier: Proxier,
        *,
        began: float,
        picture: Callable[[], Picture],
        ports_in_use: bool,
        kernel_flows: KernelFlows,
        closing: AsyncExitStack,
    ) -> None:
        """Start the servers; `closing` closes them.

        KernelError when an address is in use and bindAddressHardFail is set.
        `began`: when this run did, in Unix seconds. `ports_in_use`: by a predecessor, until `expect_ports`.
        """
        from kubeproxy.daemon.http_pages import http_servers
        from kubeproxy.daemon.kernel_traffic import KernelTraffic
        from kubeproxy.daemon.status_collector import StatusCollector

        kernel_traffic = KernelTraffic(lambda: proxier.view.snapshot().frontends, kernel_flows)
        status_collector = StatusCollector(
            node=self._host_facts.node_name,
            began=began,
            proxier=proxier,
            data_plane=self._data_plane,
            health=self._health,
            picture=picture,
            facts=self._host_facts.facts,
            recent_warnings=self._recent_warnings,
            configuration=self._configuration_state,
            why_not_served=self._why_not_served,
            kernel_traffic=kernel_traffic,
        )
        self._tasks.start(kept_running("status", status_collector.run), name="status")
        self._servers = http_servers(
            self._configuration(),
            node_name=self._host_facts.node_name,
            health=self._health,
            metrics=self._metrics,
            data_plane=self._data_plane,
            picture=picture,
            kernel_traffic=kernel_traffic,
            status_collector=status_collector,
            configz=lambda: go_data(self._configuration()),
            on_health_failure=partial(self._events.health_failed, self._host_facts.node_name),
            holder_of=self._holder_of,
        )
        for server in self._servers:
            closing.push_async_callback(server.close)
            if ports_in_use:
                server.expect_port(math.inf)
            await server.start()
        self._answering = self._tasks.start(
            kept_running("service health", self._answer_load_balancers), name="service health"
        )
        self.opened.set()

    def _holder_of(self, host: str, port: int) -> str:
        """The process that has a port, in words; empty: unknown."""
        try:
            holders = self._find_holders(Protocol.TCP, Address(host), port)
        except OSError:
            return ""
        text = ", ".join(map(str, holders))
        other = kube_proxy_process()
        if other is not None and not any(holder.command for holder in holders):
            text += f"; kube-proxy runs here (process {other})"
        return f"{text}: stop it first (docs/migration.md)" if "kube-proxy" in text else text

    def expect_ports(self) -> None:
        """The predecessor has released its ports."""
        for server in self._servers:
            server.expect_port()

    async def release_ports(self) -> None:
        """Release the ports for a new instance; returns when they are free."""
        await self.opened.wait()
        for server in self._servers:
            await server.close()
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait((self._answering,))

    def ask_after(self, services: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Set the Services with a health check node port (see `ServiceHealthServers.sync`)."""
        self._asked_after = services
        self._news.set()

    def move(self) -> None:
        """Listen on this node's new addresses."""
        self._news.set()

    async def _answer_load_balancers(self) -> None:
        await self._taken.wait()
        from kubeproxy.observability.http.service_health import ServiceHealthServers

        servers = ServiceHealthServers(
            health=self._health,
            addresses=self._host_facts.facts().node_addresses,
            on_failure=self._events.health_server_failed,
        )
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await servers.set_addresses(self._host_facts.facts().node_addresses)
                await servers.sync(self._asked_after)
        finally:
            await servers.close()
