"""The process of the controller manager: signals, the HTTP server, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.controller.leader_election import LeadershipLostError
from kubeproxy.observability.http.server import HttpServer
from kubeproxy.runtime.tasks import TaskSet
from kubeproxy.workloads.manager import ControllerManager, ManagerSettings
from kubeproxy.workloads.manager_pages import routes

log = structlog.get_logger(__name__)

UNLIMITED = frozenset({"informers", "leader-election"})
"""Clients without a limit of requests: watches must not wait behind writes, and a renewal behind nothing."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where health, metrics and status are served; port 0: nowhere."""

    host: str
    port: int


class ServiceManager(Protocol):
    """The service manager that started this process, by sd_notify(3)."""

    def starting(self, status: str) -> None:
        """Not ready yet."""

    def ready(self, status: str) -> None:
        """At work, or waiting for the lease."""

    def stopping(self, status: str, *, takes_s: float) -> None:
        """About to end."""

    async def beat(self, status: Callable[[], str]) -> None:
        """Repeat the status, until cancelled."""

    def close(self) -> None:
        """Close the connection to the service manager."""


def run(settings: ManagerSettings, client: ClientSettings, address: ServerAddress, notifier: ServiceManager) -> int:
    """Until a signal (exit status 0), or until leadership is lost (1)."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(settings, client, address, notifier))


async def _live(
    settings: ManagerSettings, client: ClientSettings, address: ServerAddress, notifier: ServiceManager
) -> int:
    """From the start to the end of the process."""

    async def connect(purpose: str) -> Client:
        return await Client.connect(replace(client, qps=0.0) if purpose in UNLIMITED else client)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_requested, stop, number)
    notifier.starting("connects to the API server")
    manager = ControllerManager(settings, connect)
    server = HttpServer(
        name="status", host=address.host, port=address.port, routes=routes(manager), setting="--bind-address, --port"
    )
    if address.port:
        await server.start()
    try:
        return await _until_the_end(manager, stop, notifier)
    finally:
        notifier.stopping("gives up the lease", takes_s=5.0)
        await manager.close()
        if address.port:
            await server.close()
        notifier.close()


async def _until_the_end(manager: ControllerManager, stop: asyncio.Event, notifier: ServiceManager) -> int:
    """Work until the signal comes or the work ends; the exit status."""
    tasks = TaskSet(lambda name, error: None)  # the one that may fail is looked at below
    working = tasks.start(manager.run(), name="controller manager")
    stopping = tasks.start(stop.wait(), name="signals")
    tasks.start(notifier.beat(lambda: summary(manager)), name="service manager")
    notifier.ready(summary(manager))
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    error = working.exception() if working.done() else None
    await tasks.close()
    if error is not None:
        cause = _cause(error)
        if not isinstance(cause, LeadershipLostError):
            raise cause
    return 0 if stop.is_set() else 1


def _cause(error: BaseException) -> BaseException:
    """The first error of a group that task groups have wrapped around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def summary(manager: ControllerManager) -> str:
    """One line for `systemctl status`."""
    leadership = manager.leadership
    if leadership is not None and not leadership.is_leading():
        return f"waits for the lease of {leadership.holder}" if leadership.holder else "waits for the lease"
    if not manager.working:
        return "fills its caches"
    waiting = sum(len(controller.queue) for controller in manager.controllers)
    return f"keeps {len(manager.deployments.store)} Deployments and {len(manager.pods.store)} pods; {waiting} keys wait"


def _stop_requested(stop: asyncio.Event, number: signal.Signals) -> None:
    log.info("stop requested", signal=number.name)
    stop.set()
