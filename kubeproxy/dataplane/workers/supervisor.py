"""The worker processes, kept in number: who ends gets a successor, who ends again and again gets one later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kubeproxy.dataplane.workers.process import WorkerProcess, all_reaped
from kubeproxy.dataplane.workers.protocol import Answer, End, Request
from kubeproxy.model.errors import KernelError
from kubeproxy.runtime.tasks import TaskSet

START_S = 10.0
"""How long `until_served` waits for the first worker to be in service."""
STEADY_S = 60.0
"""A worker that lived that long was well; and so long do deaths count for `trouble`."""
DEATHS = 3
"""So many within `STEADY_S` are trouble."""
PAUSE_FIRST_S, PAUSE_LIMIT_S = 0.1, 10.0
"""How long its place stays empty at the second death in a row, and at most. At the first it does not."""
END_S = 3.0
"""How long workers may take to end when they are told to do so at once."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A worker serves no more, and nobody had asked for that."""

    number: int
    pid: int | None
    """None: it could not even be started."""
    reason: str
    restarts_in_s: float


class Supervisor:
    """Keeps `count` places taken."""

    def __init__(
        self,
        count: int,
        *,
        command: Callable[[int, int], Sequence[str]],
        inherit: Sequence[int],
        bring_up: Callable[[WorkerProcess], Awaitable[str | None]],
        on_gone: Callable[[WorkerProcess], None],
        on_end: Callable[[WorkerEnd], None],
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        """To be made inside a running event loop; the workers start at once.

        `command`: what to execute for the worker of a number, with its channel at a descriptor. `inherit`: more
        descriptors that stay open in it. `bring_up` tells a new one everything, and says what it could not do; None:
        it is in service, or gone. `on_gone` is told of each that has left `workers`; `on_end` of each for whom nobody
        had asked that, and why. `on_crash` is told of errors that ought not to be (see `TaskSet`).
        """
        self.workers: dict[int, WorkerProcess] = {}
        """By place, those on their way into service included."""
        self.restarts = 0
        """How many were started in place of others."""
        self._command = command
        self._inherit = tuple(inherit)
        self._bring_up = bring_up
        self._on_gone = on_gone
        self._on_end = on_end
        self._leavers: set[WorkerProcess] = set()
        """Those that serve no new clients, but are not reaped yet."""
        self._serving = asyncio.Event()
        """Whether one is in service."""
        self._deaths: deque[tuple[float, WorkerEnd]] = deque(maxlen=DEATHS)
        self._over = asyncio.Event()
        """Set when nobody is to be started any more."""
        self._tasks = TaskSet(on_crash)
        for number in range(count):
            self._tasks.start(self._keep(number), name=f"worker {number}")

    @property
    def problem(self) -> str | None:
        """Why workers do not serve as they should; None: they do."""
        if len(self._deaths) < DEATHS or asyncio.get_running_loop().time() - self._deaths[0][0] > STEADY_S:
            return None
        last = self._deaths[-1][1]
        return f"workers keep dying: {DEATHS} within {STEADY_S:g} s, the last (number {last.number}): {last.reason}"

    @property
    def open_connections(self) -> int:
        """Of all of them, those included that are not reaped yet; at most a second old."""
        return sum(worker.open for worker in (*self.workers.values(), *self._leavers))

    async def until_served(self) -> None:
        """Back when one is in service, or when nobody will be any more. KernelError when it takes too long."""
        if self._serving.is_set() or self._over.is_set():
            return
        try:
            async with asyncio.timeout(START_S):
                await self._serving.wait()
        except TimeoutError:
            last = f"; the last one: {self._deaths[-1][1].reason}" if self._deaths else ""
            raise KernelError(f"no worker process is in service within {START_S:g} s{last}") from None

    async def ask(self, make: Callable[[int], Request]) -> list[Answer | None]:
        """The same of everybody in service (see `WorkerProcess.request`)."""
        return await asyncio.gather(
            *(worker.request(make) for worker in list(self.workers.values()) if worker.in_service)
        )

    async def _keep(self, number: int) -> None:
        """Keep a worker in one of the places."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not self._over.is_set():
            started_at = loop.time()
            worker: WorkerProcess | None = None
            try:
                worker = WorkerProcess(number, partial(self._command, number), inherit=self._inherit)
                reason = await self._tend(worker)
            except OSError as error:
                reason = f"it cannot be started: {error.strerror or error}"
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
        """A worker's life: bring it into service, and wait for its end; why it ended."""
        self.workers[worker.number] = worker
        try:
            if (failure := await self._bring_up(worker)) is not None:
                worker.kill(failure)
            elif worker.in_service:
                self._serving.set()
            return await asyncio.shield(worker.gone)
        finally:
            del self.workers[worker.number]
            self._leavers.add(worker)
            worker.reaped.add_done_callback(lambda _: self._leavers.discard(worker))
            if not any(other.in_service for other in self.workers.values()):
                self._serving.clear()
            self._on_gone(worker)

    def start_no_more(self) -> None:
        """Whoever ends from now on gets no successor, and who is not in service yet is not needed."""
        self._over.set()
        for worker in self.workers.values():
            if not worker.in_service:
                worker.kill("it is not needed any more")

    async def close(self) -> None:
        """End them all at once. The processes have ended then."""
        self._over.set()
        everybody = [*self.workers.values(), *self._leavers]
        for worker in self.workers.values():
            worker.request(End)
        for worker in self._leavers:
            worker.kill("it is to end at once")
        await all_reaped(everybody, within_s=END_S)
        await self._tasks.close()
