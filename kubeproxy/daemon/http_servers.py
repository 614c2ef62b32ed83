"""The daemon's HTTP servers: one for health, and one for metrics with status pages.

Clients of Services do not wait for these servers. So everything that belongs to HTTP (`http_pages`) is imported only by
`open`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kubeproxy.daemon.shown_parts import ShownParts
from kubeproxy.observability.status.recent_warnings import RecentWarnings
from kubeproxy.runtime.keep_running import kept_running
from kubeproxy.runtime.threads import imported

if TYPE_CHECKING:
    from kubeproxy.observability.http.server import HttpServer


class HttpServers:
    """The HTTP servers. They are closed until `open`, and again after `release_ports`, which frees the ports for a new
    instance."""

    def __init__(self, parts: ShownParts) -> None:
        self._parts = parts
        self._recent_warnings = RecentWarnings()
        self._recent_warnings.attach()
        self._servers: Sequence[HttpServer] = ()
        self._answering: asyncio.Task[None] | None = None
        self.opened = asyncio.Event()
        """Set when the HTTP servers answer, or when they are waiting for an address that another process uses."""

    async def open(self) -> None:
        """Start the servers, and answer load balancers. Raise KernelError if an address is in use and
        bindAddressHardFail is true."""
        await imported("kubeproxy.daemon.http_pages", "kubeproxy.daemon.status_collector")
        from kubeproxy.daemon.http_pages import http_servers
        from kubeproxy.daemon.status_collector import StatusCollector

        parts, tasks = self._parts, self._parts.process.tasks
        status_collector = StatusCollector(parts, self._recent_warnings)
        tasks.start(kept_running("status", status_collector.run), name="status")
        self._servers = http_servers(parts, status_collector)
        follows = parts.ownership.has_predecessor()
        for server in self._servers:
            parts.process.closing.push_async_callback(server.close)
            if follows:
                server.expect_port(math.inf)  # The predecessor keeps the ports until it has released everything.
            await server.start()
        if follows:
            tasks.start(self._expect_ports(), name="ports of the predecessor")
        self._answering = tasks.start(
            kept_running("service health", parts.reporting.load_balancers.run), name="service health"
        )
        self.opened.set()

    async def _expect_ports(self) -> None:
        """Bind the ports as soon as the predecessor has released them."""
        await self._parts.ownership.taken.wait()
        for server in self._servers:
            server.expect_port()

    async def release_ports(self) -> None:
        """Close the servers, so that a new instance can bind their ports. Return when the ports are free."""
        await self.opened.wait()
        for server in self._servers:
            await server.close()
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait((self._answering,))
