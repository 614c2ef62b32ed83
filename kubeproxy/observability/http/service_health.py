"""Health check node ports: how load balancers learn which nodes have endpoints of their own for a Service.

A Service of type LoadBalancer under externalTrafficPolicy Local names such a port; what is answered there is what the
newest kube-proxy answers (pkg/proxy/healthcheck).
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
from kubeproxy.observability.http.server import RETRY_S, HttpServer

log = structlog.get_logger(__name__)

SETTING: Final = "spec.healthCheckNodePort"


class _Place(NamedTuple):
    """One listening socket."""

    service: ServiceName
    port: int
    address: Address


class ServiceHealthServers:
    """An HTTP server for each Service that has a health check node port, on each address that takes node ports.

    A port that cannot be had costs its Service that server only: it is said in the log and to `on_failure` (for an
    event on the Service) once, and tried again until it can. Of two Services with the same port, the one that has it
    keeps it. `clock` is the one that the proxier reports its health by.
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
        self._servers: dict[_Place, HttpServer] = {}
        self._told: dict[ServiceName, tuple[int, ServiceName | None]] = {}
        """The trouble that a Service has been told: the port, and who else has it (None: the address is not free)."""
        self._changing = asyncio.Lock()

    async def sync(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Serve these and no others: Service -> (healthCheckNodePort, number of its ready endpoints on this node); port
        0: none.

        Numbers are answered from now on; sockets have changed when this returns, which may take a second where answers
        are on their way.
        """
        self._wanted = {service: of for service, of in wanted.items() if of[0]}
        await self._reconcile()

    async def set_addresses(self, addresses: Iterable[Address]) -> None:
        """The addresses that take node ports have changed; a wildcard address stands for all of its family."""
        self._addresses = bindable(addresses)
        await self._reconcile()

    async def close(self) -> None:
        """Serve none."""
        await self.sync({})

    async def _reconcile(self) -> None:
        async with self._changing:
            self._holders, refused = assign(self._wanted, self._holders)
            places = {_Place(of, port, address) for port, of in self._holders.items() for address in self._addresses}
            self._told = {
                name: told
                for name, told in self._told.items()
                if told == (self._wanted.get(name, (0, 0))[0], refused.get(name))
            }
            for service, holder in refused.items():
                port = self._wanted[service][0]
                self._tell(service, port, f"health check node port {port} is taken by {holder}", holder=holder)
            # Closed first: a port may pass from one Service to another.
            await asyncio.gather(*(self._servers.pop(place).close() for place in self._servers.keys() - places))
            for place in sorted(places - self._servers.keys()):
                self._servers[place] = server = self._make_server(place)
                await server.start()

    def _make_server(self, place: _Place) -> HttpServer:
        async def answer(request: web.Request) -> web.Response:
            return self._answer(place.service)

        return HttpServer(
            name=f"health check of {place.service}",
            host=place.address,
            port=place.port,
            routes=[web.route("*", "/{path:.*}", answer)],
            setting=SETTING,
            dualstack=False,
            on_failure=lambda reason: self._tell(place.service, place.port, f"health check node port: {reason}"),
            quiet=True,
            alone=True,
            retry_s=self._retry_s,
        )

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

    def _tell(self, service: ServiceName, port: int, text: str, *, holder: ServiceName | None = None) -> None:
        """Once for each Service and port, however many addresses it concerns."""
        if self._told.get(service) != (port, holder):
            self._told[service] = (port, holder)
            log.warning("a health check node port is not served", service=str(service), reason=text)
            self._on_failure(service, text)


def assign(
    wanted: Mapping[ServiceName, tuple[int, int]], holders: Mapping[int, ServiceName]
) -> tuple[dict[int, ServiceName], dict[ServiceName, ServiceName]]:
    """Who has which port, and who is refused because of whom. Pure. Who has a port keeps it while it is wanted; a free
    one is taken by the first that wants it."""
    found = {port: service for port, service in holders.items() if wanted.get(service, (0, 0))[0] == port}
    for service, (port, _) in wanted.items():
        found.setdefault(port, service)
    return found, {service: found[port] for service, (port, _) in wanted.items() if found[port] != service}


def bindable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The addresses to bind: each once, and none beside the wildcard address of its family. Pure."""
    given = set(addresses)
    all_of = {family for family, wildcard in NODE_PORTS.items() if wildcard in given}
    return tuple(sorted(it for it in given if family_of(it) not in all_of or it in NODE_PORTS.values()))
