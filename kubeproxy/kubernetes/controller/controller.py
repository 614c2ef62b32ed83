"""A controller: workers that take keys from a queue and sync the object of each key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from kubeproxy.kubernetes.client.errors import ApiError, UnreachableError
from kubeproxy.kubernetes.controller.leader_election import LeadershipLostError
from kubeproxy.kubernetes.controller.workqueue import CAP_S, WorkQueue
from kubeproxy.kubernetes.object_client import is_conflict, namespace_terminating

log = structlog.get_logger(__name__)


AWAY_S: Final = 10.0
"""The longest backoff in seconds while the server is unreachable. It limits the delay after the server's return. A
key's own backoff could then be as long as the outage."""


def monotonic() -> float:
    """Return the time of the running event loop, in seconds. Queues and expectations use this clock."""
    return asyncio.get_running_loop().time()


Sync = Callable[[str], Awaitable[None]]


class Controller:
    """A work queue with its workers.

    Each worker calls `sync` with one key. No two workers have the same key at once. If `sync` raises, it is called
    again after the key's backoff. With `max_retries`, a key is dropped after so many failures in a row, until its next
    event. No key is dropped while the server is unreachable, because there may be no event when the server returns.
    """

    def __init__(self, name: str, sync: Sync, *, workers: int, max_retries: int | None = None) -> None:
        self.name = name
        self.queue = WorkQueue(name)
        self.errors = 0
        """The number of failed syncs."""
        self.dropped = 0
        """The number of keys that were dropped until their next event."""
        self._sync = sync
        self._workers = workers
        self._max_retries = max_retries
        self._changed = asyncio.Event()
        self._taking = asyncio.Lock()

    def enqueue(self, key: str) -> None:
        """Add a key to the queue."""
        self.queue.add(key, monotonic())
        self._changed.set()

    def enqueue_after(self, key: str, delay_s: float) -> None:
        """Add a key to the queue in `delay_s` seconds."""
        self.queue.add_after(key, delay_s, monotonic())
        self._changed.set()

    def enqueue_rate_limited(self, key: str, *, longest_s: float = CAP_S) -> None:
        """Add a key to the queue after its backoff, at most `longest_s` seconds."""
        self.queue.add_rate_limited(key, monotonic(), longest_s=longest_s)
        self._changed.set()

    async def run(self) -> None:
        """Run the workers until cancelled. Syncs in progress are cancelled, too."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name} worker {number}")

    @property
    def idle(self) -> bool:
        """Return whether no key is waiting, delayed, or being processed."""
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
        async with self._taking:  # A change wakes one worker, not all.
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
            return  # The workers are about to be cancelled.
        self.errors += 1
        if namespace_terminating(error):
            self.queue.forget(key)
            return
        gives_up = self._max_retries is not None and not isinstance(error, UnreachableError)
        if gives_up and self.queue.requeues(key) >= (self._max_retries or 0):
            self.dropped += 1
            self.queue.forget(key)
            log.warning("sync given up", controller=self.name, key=key, error=str(error))
            return
        self.enqueue_rate_limited(key, longest_s=AWAY_S if isinstance(error, UnreachableError) else CAP_S)
        retries = self.queue.requeues(key)
        if is_conflict(error):
            log.debug("sync met a conflict", controller=self.name, key=key, retries=retries)
        elif isinstance(error, UnreachableError):
            log.info("sync could not reach the server", controller=self.name, key=key, error=str(error))
        elif isinstance(error, ApiError):
            write = (
                log.warning if error.status == 403 else log.info
            )  # A missing right or a quota, which a person has to mend.
            write("sync failed", controller=self.name, key=key, error=str(error), retries=retries)
        else:
            log.warning("sync failed", controller=self.name, key=key, retries=retries, exc_info=error)
