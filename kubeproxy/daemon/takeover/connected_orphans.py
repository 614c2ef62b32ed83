"""The orphaned workers that are connected to the owner of the node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

import structlog

from kubeproxy.daemon.takeover.instances import is_marker
from kubeproxy.daemon.takeover.orphaned_worker import OrphanedWorker
from kubeproxy.daemon.takeover.owner import Owner
from kubeproxy.daemon.takeover.protocol import receive_first, send_first
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.takeover_messages import SHOWN, Show
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

REAPS: Final = 50
REAP_S: Final = 0.1
"""How often to check whether a retired worker has ended."""
ORPHANS: Final = 256
"""The largest number of orphaned workers at a time, because they need not prove anything."""


class Orphans:
    """The orphaned workers, until they end. Once our rules are in force they move their connections here and retire."""

    def __init__(self, owner: Owner, tasks: TaskSet) -> None:
        self._owner = owner
        self._tasks = tasks
        self._in_force = False
        self._orphans: set[OrphanedWorker] = set()

    def __len__(self) -> int:
        return len(self._orphans)

    @property
    def have_room(self) -> bool:
        """Return whether one more may connect."""
        return len(self._orphans) < ORPHANS

    async def serve(self, orphan: OrphanedWorker) -> None:
        """Serve a worker until it ends. Raise ValueError for an invalid message."""
        log.info("orphaned worker keeps serving", pid=orphan.pid, until="our rules are in force")
        self._orphans.add(orphan)
        try:
            with contextlib.suppress(OSError):
                if self._in_force:
                    self._tasks.start(self._relieve(orphan), name="takeover: relieve")
                await orphan.serve()
        finally:
            self._orphans.remove(orphan)
        log.info("orphaned worker has ended", pid=orphan.pid)

    def in_force(self) -> None:
        """Retire all orphaned workers, also those that connect later, because our rules are in force."""
        self._in_force = True
        for orphan in self._orphans:
            self._tasks.start(self._relieve(orphan), name="takeover: relieve")

    async def _relieve(self, orphan: OrphanedWorker) -> None:
        """Have an orphaned worker move its connections to our workers, if it may, and then retire it."""
        if orphan.can_move:
            try:
                entrances = await self._owner.adopt()
            except OSError as error:  # No descriptors are left.
                log.warning("orphaned worker: connections stay with it", pid=orphan.pid, reason=str(error))
            else:
                await self._move(orphan, entrances)
        await orphan.retire()

    @staticmethod
    async def _move(orphan: OrphanedWorker, entrances: Entrances) -> None:
        try:
            if entrances.sockets:
                await orphan.move(entrances)
        finally:
            entrances.close()

    async def recall(self) -> list[list[RestoreBindings]]:
        """Ask each orphaned worker for its session affinity bindings. Return those that arrive in time."""
        return await asyncio.gather(*(orphan.recall() for orphan in self._orphans))


async def shows_marker(sock: socket.socket, run: str) -> bool:
    """Return whether a worker shows the marker of its run. Raise OSError or ValueError if it does not answer
    properly."""
    send_first(sock, Show())
    _, descriptors = await receive_first(sock, SHOWN)
    return [is_marker(descriptor, run) for descriptor in descriptors] == [True]


async def reap(pid: int) -> None:
    """Wait until an orphaned worker has ended. After a re-exec it is our child, and would remain as a zombie."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(REAPS):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):  # noqa: ASYNC222 - does not wait
                return
            await asyncio.sleep(REAP_S)
