"""Runs the process of the controller manager: handles signals, serves HTTP, and ends the process."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from aiohttp import web

from kubeproxy.controllers.manager.manager import ControllerManager, ManagerSettings
from kubeproxy.controllers.manager.pages import routes
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.delegated_access import AccessRefusedError, DelegatedAccess
from kubeproxy.observability.http.access import Access
from kubeproxy.observability.http.middlewares import Gate
from kubeproxy.observability.http.server import HttpServer, Listening, Protection
from kubeproxy.observability.http.tls import ServingTls, TlsFiles
from kubeproxy.runtime.sd_notify import Notifier
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

REVIEWS: Final = "reviews"
UNLIMITED: Final = frozenset({"informers", "leader-election"})
"""The purposes of clients without a request limit. Watches must not wait behind writes, and nothing may delay the
renewal of the Lease."""


OPEN_PAGES: Final = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})
"""The pages of the plain HTTP port that clients on other hosts may read. The status page is only for this host, because
it names every Deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The addresses of the HTTP servers. With port 0, the server is off."""

    address: str
    port: int
    """The port of plain HTTP."""
    secure_address: str = ""
    secure_port: int = 0
    """The TLS port. For each request, the API server decides whether the client may read the page."""
    files: TlsFiles = field(default_factory=TlsFiles)
    always_allowed: frozenset[str] = frozenset()
    """Paths that the TLS port serves to any client. A path that ends in ``/*`` stands for all paths below it."""

    def is_open(self, path: str) -> bool:
        """Return whether the TLS port serves a path to any client."""
        return any(
            path == allowed or (allowed.endswith("/*") and path.startswith(allowed[:-1]))
            for allowed in self.always_allowed
        )


def run(settings: ManagerSettings, client: ClientSettings, serving: Serving, notifier: Notifier) -> int:
    """Run the process, and return its exit status: 0 after a signal, 1 after leadership is lost."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(settings, client, serving, notifier))


async def _live(settings: ManagerSettings, client: ClientSettings, serving: Serving, notifier: Notifier) -> int:
    """Run the manager and the HTTP servers, and return the exit status."""

    async def connect(purpose: str) -> Client:
        return await Client.connect(replace(client, qps=0.0) if purpose in UNLIMITED else client)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_requested, stop, number)
    notifier.starting("connects to the API server")
    manager = ControllerManager(settings, connect)
    reviews = await connect(REVIEWS) if serving.secure_port else None
    servers = make_servers(manager, serving, reviews)
    for server in servers:
        await server.start()
    try:
        return await _until_the_end(manager, stop, notifier)
    finally:
        notifier.stopping("gives up the lease", takes_s=5.0)
        await manager.close()
        for server in servers:
            await server.close()
        if reviews is not None:
            await reviews.close()
        notifier.close()


def make_servers(manager: ControllerManager, serving: Serving, reviews: Client | None) -> list[HttpServer]:
    """Return the plain and the secure server, if they have a port. `reviews` asks the API server about clients.

    Raise ConfigError if a TLS file cannot be used.
    """
    servers = []
    if serving.port:
        plain = Listening(name="status", host=serving.address, port=serving.port, setting="--address, --port")
        servers.append(HttpServer(plain, routes(manager), Protection(access=Access(open_pages=OPEN_PAGES))))
    if serving.secure_port and reviews is not None:
        secure = Listening(
            name="secure status",
            host=serving.secure_address,
            port=serving.secure_port,
            setting="--bind-address, --secure-port",
        )
        protection = Protection(gate=_gate(serving, DelegatedAccess(reviews)), tls=ServingTls(serving.files).context)
        servers.append(HttpServer(secure, routes(manager), protection))
    return servers


def _gate(serving: Serving, access: DelegatedAccess) -> Gate:
    """Return a gate for HTTP requests. It refuses a request unless the API server allows the client to read the
    page."""

    async def refuse(request: web.Request) -> web.Response | None:
        # The answer will be 404 or 405, so the API server need not be asked.
        no_such_page = request.match_info.http_exception is not None
        if serving.is_open(request.path) or no_such_page:
            return None
        transport = request.transport
        try:
            await access.demand(
                request.path,
                request.method,
                authorization=request.headers.get("Authorization", ""),
                certificate=None if transport is None else transport.get_extra_info("peercert"),
            )
        except AccessRefusedError as error:
            log.debug("page refused", path=request.path, status=error.status, reason=str(error))
            return web.Response(status=error.status, text=f"{error}\n")
        return None

    return refuse


async def _until_the_end(manager: ControllerManager, stop: asyncio.Event, notifier: Notifier) -> int:
    """Work until a signal comes or the work ends. Return the exit status."""
    tasks = TaskSet(lambda name, error: None)  # The work may fail; its error is read below.
    working = tasks.start(manager.run(), name="controller manager")
    stopping = tasks.start(stop.wait(), name="signals")
    tasks.start(notifier.beat(lambda: summary(manager)), name="service manager")
    notifier.ready(summary(manager))
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    error = working.exception() if working.done() else None
    await tasks.close()
    if error is not None:
        raise _cause(error)
    return 0 if stop.is_set() else 1


def _cause(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def summary(manager: ControllerManager) -> str:
    """Return the status line that `systemctl status` shows."""
    leadership = manager.leadership
    if leadership is not None and not leadership.is_leading():
        return f"waits for the lease of {leadership.holder}" if leadership.holder else "waits for the lease"
    if not manager.working:
        return "fills its caches"
    waiting = sum(len(controller.queue) for controller in manager.controllers)
    deployments, pods = len(manager.informers.deployments.store), len(manager.informers.pods.store)
    kept = f"keeps {deployments} Deployments and {pods} pods" if manager.rival else f"watches {pods} pods"
    gated = 0 if manager.readiness is None else manager.readiness.waiting
    return f"{kept}; {waiting} keys wait" + (f"; {gated} pods wait at their readiness gate" if gated else "")


def _stop_requested(stop: asyncio.Event, number: signal.Signals) -> None:
    log.info("stop requested", signal=number.name)
    stop.set()
