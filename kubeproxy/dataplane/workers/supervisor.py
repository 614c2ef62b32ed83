"""Keeps a number of worker processes running.

A worker that exits is replaced. If workers exit repeatedly, the delay before the replacement grows exponentially."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kubeproxy.dataplane.workers.process import WorkerProcess, all_reaped
from kubeproxy.dataplane.workers.protocol import Exit, Reply, Request
from kubeproxy.model.errors import KernelError
from kubeproxy.runtime.tasks import TaskSet

START_S = 10.0
"""How many seconds `until_served` waits for the first worker to be in service."""
STEADY_S = 60.0
"""A worker that has run for this many seconds resets the delay. Deaths within this time count for `problem`."""
DEATHS = 3
"""The number of deaths within `STEADY_S` that count as a problem."""
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.1, 10.0
"""The delay in seconds before the replacement after the second death in a row, and the longest delay. After the first
death there is no delay."""
END_S = 3.0
"""How many seconds workers may take to exit at shutdown."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """Describes the unexpected end of a worker."""

    number: int
    pid: int | None
    """The process id, or None if the process could not start."""
    reason: str
    restarts_in_s: float


class Supervisor:
    """Keeps `count` workers running."""

    def __init__(
        self,
        count: int,
        *,
        command: Callable[[int, int], Sequence[str]],
        inherit: Sequence[int],
        initialize: Callable[[WorkerProcess], Awaitable[str | None]],
        on_stopped: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerEnd], None],
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """Start the workers. Call this in a running event loop.

        `command` returns the command line for a worker's number and the descriptor of its channel. `inherit` has
        further descriptors that stay open in the worker. `initialize` sends a new worker the full state, and returns
        its failure, or None if the worker is in service or has stopped. `on_stopped` is called for each worker that is
        removed from `workers`, `on_end` for each that ended unexpectedly, and `on_crash` for internal errors (see
        `TaskSet`)."""
        self.workers: dict[int, WorkerProcess] = {}
        """The running workers by number. Some may not be in service yet."""
        self.restarts = 0
        """How many workers were started as replacements."""
        self._command = command
        self._inherit = tuple(inherit)
        self._initialize = initialize
        self._on_stopped = on_stopped
        self._on_end = on_end
        self._leavers: set[WorkerProcess] = set()
        """The workers that no longer accept clients but have not exited yet."""
        self._serving = asyncio.Event()
        """Set while any worker is in service."""
        self._deaths: deque[tuple[float, WorkerEnd]] = deque(maxlen=DEATHS)
        self._over = asyncio.Event()
        """Set when no more workers will be started."""
        self._tasks = TaskSet(on_crash)
        for number in range(count):
            self._tasks.start(self._keep(number), name=f"worker {number}")

    @property
    def problem(self) -> str | None:
        """Return why workers do not serve. Return None if they do, or if fewer than `DEATHS` have died within
        `STEADY_S`."""
        if len(self._deaths) < DEATHS or asyncio.get_running_loop().time() - self._deaths[0][0] > STEADY_S:
            return None
        last = self._deaths[-1][1]
        return f"workers keep dying: {DEATHS} within {STEADY_S:g} s, the last (number {last.number}): {last.reason}"

    @property
    def open_connections(self) -> int:
        """Return the number of open connections of all workers, including those that are about to exit. It is at most a
        second old."""
        return sum(worker.open for worker in (*self.workers.values(), *self._leavers))

    async def until_served(self) -> None:
        """Wait until a worker is in service, or the shutdown has begun. Raise KernelError after `START_S` seconds."""
        if self._serving.is_set() or self._over.is_set():
            return
        try:
            async with asyncio.timeout(START_S):
                await self._serving.wait()
        except TimeoutError:
            last = f"; last failure: {self._deaths[-1][1].reason}" if self._deaths else ""
            raise KernelError(f"no worker process is in service within {START_S:g} s{last}") from None

    async def request_all(self, make: Callable[[int], Request]) -> list[Reply | None]:
        """Send the same request to all workers in service, and return their replies (see `WorkerProcess.request`)."""
        return await asyncio.gather(
            *(worker.request(make) for worker in list(self.workers.values()) if worker.in_service)
        )

    async def _keep(self, number: int) -> None:
        """Keep a worker with this number running, by replacing it when it ends."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not self._over.is_set():
            started_at = loop.time()
            worker: WorkerProcess | None = None
            try:
                worker = WorkerProcess(number, partial(self._command, number), inherit=self._inherit)
                reason = await self._tend(worker)
            except OSError as error:
                reason = f"cannot start: {error.strerror or error}"
            if self._over.is_set():
                return
            if loop.time() - started_at >= STEADY_S:
                pause_s = 0.0
            end = WorkerEnd(number, worker.pid if worker else None, reason, pause_s)
            self._deaths.append((loop.time(), end))
            self._on_end(end)
            await asyncio.sleep(pause_s)
            self.restarts += 1
            pause_s = min(max(PAUSE_FIRST_S, 2 * pause_s), PAUSE_LIMIT_S)

    async def _tend(self, worker: WorkerProcess) -> str:
        """Bring a worker into service, and wait until it ends. Return the reason of its end."""
        self.workers[worker.number] = worker
        try:
            if (failure := await self._initialize(worker)) is not None:
                worker.kill(failure)
            elif worker.in_service:
                self._serving.set()
            return await asyncio.shield(worker.stopped)
        finally:
            del self.workers[worker.number]
            self._leavers.add(worker)
            worker.reaped.add_done_callback(lambda _: self._leavers.discard(worker))
            if not any(other.in_service for other in self.workers.values()):
                self._serving.clear()
            self._on_stopped(worker)

    def stop_starting(self) -> None:
        """Start no more workers, and kill those that are not in service yet."""
        self._over.set()
        for worker in self.workers.values():
            if not worker.in_service:
                worker.kill("no longer needed")

    async def close(self) -> None:
        """Stop all workers at once. Return when their processes have exited."""
        self._over.set()
        every_worker = [*self.workers.values(), *self._leavers]
        for worker in self.workers.values():
            worker.request(Exit)
        for worker in self._leavers:
            worker.kill("shutdown")
        await all_reaped(every_worker, within_s=END_S)
        await self._tasks.close()
