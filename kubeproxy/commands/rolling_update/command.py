"""Runs ``kubeproxy rolling-update`` once: connects, carries out the update, prints its progress, and, if the update
stops, prints how to continue."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from kubeproxy.commands.interruption import SIGNALLED, Interruption
from kubeproxy.commands.rolling_update import guidance, manifest
from kubeproxy.commands.rolling_update.controller import Controller, RivalUpdateError
from kubeproxy.commands.rolling_update.drained_deletion import DrainedDeletion
from kubeproxy.commands.rolling_update.options import FIELD_MANAGER, UpdateOptions
from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.commands.rolling_update.update import Planned, RollingUpdate
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.controllers.proxy_requests.proxy_drain import ProxyDrain
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import Access
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.client.kubeconfig import load
from kubeproxy.kubernetes.client.policy import Policy, WaitForServer
from kubeproxy.kubernetes.printing.error_text import lines
from kubeproxy.kubernetes.printing.printer import Printer
from kubeproxy.kubernetes.resource_builder.discovery import server_minor
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.runtime.tasks import TaskSet

FAILED: Final = 1
_TICK_S: Final = 1.0


def run(options: UpdateOptions) -> int:
    """Run the command in a new event loop, and return its exit status."""
    progress = ProgressOutput(options.output.partition("=")[0])
    try:
        return asyncio.run(update(options, progress))
    except KeyboardInterrupt:  # A second SIGINT, or the first before the handlers were set.
        progress.error("interrupted")
        return SIGNALLED + signal.SIGINT


async def update(options: UpdateOptions, progress: ProgressOutput) -> int:
    """Run the command, and return its exit status. The running event loop must be the main thread's, because signals
    are handled."""
    try:
        access = Access(lambda: load(options.client))
        printer = Printer(options.output)
    except ConfigError as error:
        return _failed(progress, [error], "")
    policy = Policy.for_command(
        answer_s=options.request_timeout_s,
        retries=WaitForServer(options.timeout_s, on_wait=lambda reason: progress.waits(Waiting(reason, None))),
        field_manager=FIELD_MANAGER,
        on_warning=progress.warning,
        on_wait=lambda seconds, reason: progress.waits(Waiting(f"{seconds:.0f} s, as {reason}", None)),
    )
    async with Client(access, policy) as client:
        requests = ControllerRequests(client, access.config.namespace)
        drained_deletion = None
        if options.drain_timeout_s:
            proxies = ProxyDrain(
                client, access.config.namespace, f"rolling-update/{options.names[0]}", clock=client.now
            )
            drained_deletion = DrainedDeletion(
                proxies,
                requests,
                progress,
                drain_timeout_s=options.drain_timeout_s,
                minor=lambda: server_minor(client),
            )
        one = RollingUpdate(
            options, requests, progress, lambda: manifest.read(options, client, progress.warning), drained_deletion
        )
        return await Run(options, progress, printer, one, client.host).run()


class Run:
    """Carries out one update. Meanwhile a timer redraws the terminal, and signals are handled."""

    def __init__(
        self, options: UpdateOptions, progress: ProgressOutput, printer: Printer, update: RollingUpdate, host: str
    ) -> None:
        self._options = options
        self._progress = progress
        self._printer = printer
        self._update = update
        self._host = host
        self._tasks = TaskSet(on_crash=lambda _name, _error: None)
        self._interruption = Interruption()

    async def run(self) -> int:
        """Carry out the update, and return the exit status."""
        with self._interruption:
            return await self._carry_out()

    async def _carry_out(self) -> int:
        ticking = self._tasks.start(self._tick(), name="progress")
        work = self._tasks.start(self._update.run(), name="rolling update")
        stopped = self._tasks.start(self._interruption.wait(), name="interrupt")
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._tasks.end(work)
                if work.cancelled():
                    return self._interrupted()
            self._print(work.result())
            return 0
        except (KubeproxyError, ApiError) as error:
            return self._gave_up(error)
        finally:
            await self._tasks.end(ticking, stopped)
            await self._tasks.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._progress.tick()

    # Ending the run

    def _print(self, found: Controller | Planned) -> None:
        progress, printer, options = self._progress, self._printer, self._options
        if isinstance(found, Planned):
            texts = [
                printer.text(each.data).rstrip("\n") if printer.prints_objects else each.name
                for each in (found.source, found.target)
            ]
            progress.result(f"Rolling from:\n{texts[0]}\nTo:\n{texts[1]}\n")
            return
        what = "rolling updated"
        if options.rollback:
            what += " (rolled back)"
        elif found.name != options.names[0]:
            what += f' to "{found.name}"'
        line = f"replicationcontroller/{found.name} {what}"
        if printer.output == "json":
            progress.event("done", line, controller=found.name, object=found.data)
        elif printer.output == "name":
            progress.result(f"replicationcontroller/{found.name}\n")
        else:
            progress.result(printer.text(found.data) if printer.prints_objects else f"{line}\n")
        progress.end()

    def _gave_up(self, error: Exception) -> int:
        rest = [] if isinstance(error, RivalUpdateError) else self._guidance()
        return _failed(self._progress, [error], self._host, *rest)

    def _interrupted(self) -> int:
        self._progress.end()
        self._progress.error("interrupted")
        for line in self._guidance():
            self._progress.error(line)
        return self._interruption.status

    def _guidance(self) -> list[str]:
        update = self._update
        if not update.began:
            return []
        step_loop = update.step_loop
        return guidance.lines(
            self._options, step_loop.last if step_loop else None, back=update.back, new_name=update.new_name
        )


def _failed(progress: ProgressOutput, errors: list[Exception], host: str, *rest: str) -> int:
    progress.end()
    said = [*lines(errors, host), *rest]
    progress.failed("\n".join(said))
    for line in said:
        progress.error(line)
    return FAILED
