"""Workers that take keys from a queue and sync the object of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from kubeproxy.kubernetes.client.errors import ApiError, Unreachable
from kubeproxy.kubernetes.controller.leader_election import LeadershipLostError
from kubeproxy.kubernetes.controller.workqueue import CAP_S, WorkQueue
from kubeproxy.kubernetes.object_client import is_conflict, namespace_terminating

log = structlog.get_logger(__name__)


AWAY_S: Final = 10.0
"""The longest back-off in seconds while the server cannot be reached, and so the longest delay of a key after the
server's return. With its own back-off a key would wait as long again as the server was away."""


def monotonic() -> float:
    """Return the clock of queues and expectations: that of the running event loop."""
    return asyncio.get_running_loop().time()


Sync = Callable[[str], Awaitable[None]]


class Controller:
    """A queue with its workers.

    `sync` is called with one key at a time, and never with the same key twice at once. If it raises, it is called again
    after the queue's back-off. With `max_retries` the controller gives a key up after so many failures in a row, until
    the key's next event. It never gives up while the server cannot be reached, because there may be no event when the
    server is back.
    """

    def __init__(self, name: str, sync: Sync, *, workers: int, max_retries: int | None = None) -> None:
        self.name = name
        self.queue = WorkQueue(name)
        self.errors = 0
        """How many syncs have failed."""
        self.dropped = 0
        """How many keys were given up until their next event."""
        self._sync = sync
        self._workers = workers
        self._max_retries = max_retries
        self._changed = asyncio.Event()

    def enqueue(self, key: str) -> None:
        """Sync a key soon."""
        self.queue.add(key, monotonic())
        self._changed.set()

    def enqueue_after(self, key: str, delay_s: float) -> None:
        """Sync a key in `delay_s` seconds."""
        self.queue.add_after(key, delay_s, monotonic())
        self._changed.set()

    def enqueue_rate_limited(self, key: str, *, longest_s: float = CAP_S) -> None:
        """Sync a key after its back-off, which is at most `longest_s`."""
        self.queue.add_rate_limited(key, monotonic(), longest_s=longest_s)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled. Writes that are in progress are then cut off."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name} worker {number}")

    @property
    def idle(self) -> bool:
        """Return whether no key waits, is processed, or is delayed."""
        return not len(self.queue) and not self.queue.processing and self.queue.next_due() is None

    async def _work(self) -> None:
        while True:
            key = await self._take()
            try:
                await self._attempt(key)
            finally:
                self.queue.done(key, monotonic())
                self._changed.set()

    async def _take(self) -> str:
        while True:
            now = monotonic()
            if (key := self.queue.take(now)) is not None:
                return key
            self._changed.clear()
            due = self.queue.next_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()

    async def _attempt(self, key: str) -> None:
        try:
            await self._sync(key)
        except Exception as error:
            self._failed(key, error)
        else:
            self.queue.forget(key)

    def _failed(self, key: str, error: Exception) -> None:
        if isinstance(error, LeadershipLostError):
            return  # The work is about to be cancelled.
        self.errors += 1
        if namespace_terminating(error):
            self.queue.forget(key)
            return
        gives_up = self._max_retries is not None and not isinstance(error, Unreachable)
        if gives_up and self.queue.requeues(key) >= (self._max_retries or 0):
            self.dropped += 1
            self.queue.forget(key)
            log.warning("sync given up", controller=self.name, key=key, error=str(error))
            return
        self.enqueue_rate_limited(key, longest_s=AWAY_S if isinstance(error, Unreachable) else CAP_S)
        retries = self.queue.requeues(key)
        if is_conflict(error):
            log.debug("sync met a conflict", controller=self.name, key=key, retries=retries)
        elif isinstance(error, Unreachable):
            log.info("sync could not reach the server", controller=self.name, key=key, error=str(error))
        elif isinstance(error, ApiError):
            write = (
                log.warning if error.status == 403 else log.info
            )  # A right or a quota is missing, so a person has to act.
            write("sync failed", controller=self.name, key=key, error=str(error), retries=retries)
        else:
            log.warning("sync failed", controller=self.name, key=key, retries=retries, exc_info=error)
