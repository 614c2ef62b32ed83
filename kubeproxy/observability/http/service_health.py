"""Serves the health check node ports, where load balancers learn which nodes have local endpoints of a Service.

A Service of type LoadBalancer with externalTrafficPolicy Local has such a port. The answers are those of the newest
kube-proxy (pkg/proxy/healthcheck).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog
from aiohttp import web

from kubeproxy.model import NODE_PORTS, Address, ServiceName, family_of
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.http.server import RETRY_S, HttpServer, Listening

log = structlog.get_logger(__name__)

SETTING: Final = "spec.healthCheckNodePort"


class _Binding(NamedTuple):
    """One listening socket."""

    service: ServiceName
    port: int
    address: Address


class ServiceHealthServers:
    """One HTTP server for each health check node port and node address.

    If a port is not free, the failure is logged once and reported to `on_failure` (for an Event on the Service), and
    the server tries again. If two Services want the same port, the one that has it keeps it. `clock` is the clock of
    `health`.
    """

    def __init__(
        self,
        *,
        health: ProxyHealth,
        addresses: Iterable[Address],
        on_failure: Callable[[ServiceName, str], None],
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
    ) -> None:
        self._health = health
        self._addresses = bindable(addresses)
        self._on_failure = on_failure
        self._clock = clock
        self._retry_s = retry_s
        self._wanted: Mapping[ServiceName, tuple[int, int]] = {}
        self._holders: dict[int, ServiceName] = {}
        self._servers: dict[_Binding, HttpServer] = {}
        self._reported: dict[ServiceName, tuple[int, ServiceName | None]] = {}
        """The reported failures by Service: the port, and the Service that holds the port, or None if another process
        holds it."""
        self._changing = asyncio.Lock()

    async def sync(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Serve exactly these Services, each with its healthCheckNodePort and its number of ready endpoints on this
        node. With port 0 the Service has no server.

        New numbers of endpoints are served at once. When this returns, the sockets are opened and closed, which takes
        up to a second if answers are pending.
        """
        self._wanted = {service: of for service, of in wanted.items() if of[0]}
        await self._reconcile()

    async def set_addresses(self, addresses: Iterable[Address]) -> None:
        """Set the node addresses at which node ports are served. A wildcard address means all addresses of its
        family."""
        self._addresses = bindable(addresses)
        await self._reconcile()

    async def close(self) -> None:
        """Close all servers."""
        await self.sync({})

    async def _reconcile(self) -> None:
        async with self._changing:
            self._holders, refused = assign(self._wanted, self._holders)
            bindings = {
                _Binding(of, port, address) for port, of in self._holders.items() for address in self._addresses
            }
            self._reported = {
                name: report
                for name, report in self._reported.items()
                if report == (self._wanted.get(name, (0, 0))[0], refused.get(name))
            }
            for service, holder in refused.items():
                port = self._wanted[service][0]
                self._report(service, port, f"health check node port {port} is taken by {holder}", holder=holder)
            # Close these servers first, because a port may pass from one Service to another.
            await asyncio.gather(*(self._servers.pop(binding).close() for binding in self._servers.keys() - bindings))
            for binding in sorted(bindings - self._servers.keys()):
                self._servers[binding] = server = self._make_server(binding)
                await server.start()

    def _make_server(self, binding: _Binding) -> HttpServer:
        async def answer(request: web.Request) -> web.Response:
            return self._answer(binding.service)

        listening = Listening(
            name=f"health check of {binding.service}",
            host=binding.address,
            port=binding.port,
            setting=SETTING,
            dualstack=False,
            on_failure=lambda reason: self._report(binding.service, binding.port, f"health check node port: {reason}"),
            quiet=True,
            alone=True,
            retry_s=self._retry_s,
        )
        return HttpServer(listening, [web.route("*", "/{path:.*}", answer)])

    def _answer(self, service: ServiceName) -> web.Response:
        local_endpoints = self._wanted.get(service, (0, 0))[1]
        proxy_healthy = self._health.at(self._clock()).live
        body = {
            "service": {"namespace": service.namespace, "name": service.name},
            "localEndpoints": local_endpoints,
            "serviceProxyHealthy": proxy_healthy,
        }
        return web.Response(
            status=200 if local_endpoints and proxy_healthy else 503,
            body=json.dumps(body, indent="\t").encode(),
            headers={
                "Content-Type": "application/json",
                "X-Load-Balancing-Endpoint-Weight": str(local_endpoints),
            },
        )

    def _report(self, service: ServiceName, port: int, text: str, *, holder: ServiceName | None = None) -> None:
        """Report a failure once per Service and port, and not for each address."""
        if self._reported.get(service) != (port, holder):
            self._reported[service] = (port, holder)
            log.warning("health check node port not served", service=str(service), reason=text)
            self._on_failure(service, text)


def assign(
    wanted: Mapping[ServiceName, tuple[int, int]], holders: Mapping[int, ServiceName]
) -> tuple[dict[int, ServiceName], dict[ServiceName, ServiceName]]:
    """Return the Service that gets each port, and for each refused Service the one that has its port.

    A Service keeps its port as long as it wants it. A free port goes to the first Service that wants it.
    """
    holder_of = {port: service for port, service in holders.items() if wanted.get(service, (0, 0))[0] == port}
    for service, (port, _) in wanted.items():
        holder_of.setdefault(port, service)
    return holder_of, {service: holder_of[port] for service, (port, _) in wanted.items() if holder_of[port] != service}


def bindable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return the addresses to bind, each once. A wildcard address replaces all others of its family."""
    given = set(addresses)
    all_of = {family for family, wildcard in NODE_PORTS.items() if wildcard in given}
    return tuple(
        sorted(address for address in given if family_of(address) not in all_of or address in NODE_PORTS.values())
    )
