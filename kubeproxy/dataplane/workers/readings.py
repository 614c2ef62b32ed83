"""Sums up the counters and the status of all workers, in the control process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple, replace

from kubeproxy.dataplane.interface import NOTHING, BalancePreview, Counters, EjectedEndpoint, Ended, WorkerStatus
from kubeproxy.dataplane.workers.frontend_sockets import ServedFrontend
from kubeproxy.dataplane.workers.process import WorkerProcess
from kubeproxy.dataplane.workers.protocol import (
    EjectedReply,
    EndedReply,
    OpenReply,
    OpenToReply,
    OpenToRequest,
    PreviewReply,
    PreviewRequest,
    Query,
    Topic,
    WorkerStatusReply,
)
from kubeproxy.dataplane.workers.supervisor import Supervisor
from kubeproxy.model import Address, FrontendName, Target
from kubeproxy.runtime.time_slice import TimeSlice

SLICE_S = 0.001
"""How many seconds of work are done on counters between two yields to the event loop."""


class WorkerReadings:
    """Answers the queries of a `DataPlane` that consists of workers."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._workers = supervisor.workers
        self._frontends: dict[FrontendName, ServedFrontend[Any]] = {}
        self._past: dict[FrontendName, Counters] = {}
        """The counters of workers that have ended."""

    async def counters(self) -> Mapping[FrontendName, Counters]:
        """See `DataPlane.counters`."""
        await self._supervisor.request_all(lambda number: Query(number, Topic.COUNTERS))
        found = {name: NOTHING for name, frontend in self._frontends.items() if not frontend.serves_others}
        time_slice = TimeSlice(SLICE_S)
        for name in set().union(*self._tables()) & found.keys():
            parts = [part for table in self._tables() if (part := table.get(name)) is not None]
            found[name] = _sum(parts) if len(parts) > 1 else parts[0] if parts else NOTHING
            await time_slice.offer()  # If a worker dies meanwhile, its counters are moved to `_past`.
        return found

    def _tables(self) -> list[Mapping[FrontendName, Counters]]:
        return [self._past, *(worker.counters for worker in self._workers.values())]

    async def worker_status(self) -> Sequence[WorkerStatus]:
        """See `DataPlane.worker_status`."""
        replies = await self._supervisor.request_all(lambda number: Query(number, Topic.WORKER_STATUS))
        return sorted(
            (reply.worker_status for reply in replies if isinstance(reply, WorkerStatusReply)),
            key=lambda worker_status: worker_status.number,
        )

    async def ejected(self) -> Mapping[FrontendName, Sequence[EjectedEndpoint]]:
        """See `DataPlane.ejected`."""
        found: dict[FrontendName, list[EjectedEndpoint]] = {}
        for reply in await self._supervisor.request_all(lambda number: Query(number, Topic.EJECTED)):
            if isinstance(reply, EjectedReply):
                for name, ejected in reply.ejected:
                    found.setdefault(name, []).extend(ejected)
        return found

    async def ended(self) -> Sequence[Ended]:
        """See `DataPlane.ended`."""
        replies = await self._supervisor.request_all(lambda number: Query(number, Topic.ENDED))
        return [ended for reply in replies if isinstance(reply, EndedReply) for ended in reply.ended]

    async def open_to(self, addresses: Collection[Address]) -> Mapping[Address, int]:
        """See `DataPlane.open_to`."""
        wanted, counts = frozenset(addresses), Counter[Address]()
        for reply in await self._supervisor.request_all(lambda number: OpenToRequest(number, wanted)):
            if isinstance(reply, OpenToReply):
                counts.update(dict(reply.counts))
        return counts

    async def open_by_endpoint(self) -> Mapping[FrontendName, Mapping[Target, int]]:
        """See `DataPlane.open_by_endpoint`."""
        found: dict[FrontendName, Counter[Target]] = {}
        for reply in await self._supervisor.request_all(lambda number: Query(number, Topic.OPEN)):
            if isinstance(reply, OpenReply):
                for name, counts in reply.counts:
                    found.setdefault(name, Counter()).update(dict(counts))
        return found

    async def previews(self, frontend: FrontendName, client: Address, port: int) -> Sequence[BalancePreview]:
        """See `DataPlane.previews`."""
        replies = await self._supervisor.request_all(lambda number: PreviewRequest(number, frontend, client, port))
        found = (reply.preview for reply in replies if isinstance(reply, PreviewReply) and reply.preview is not None)
        return sorted(found, key=lambda preview: preview.worker)

    @property
    def restarts(self) -> int:
        """See `DataPlane.restarts`."""
        return self._supervisor.restarts

    @property
    def problem(self) -> str | None:
        """See `DataPlane.problem`."""
        return self._supervisor.problem

    @property
    def open_connections(self) -> int:
        """See `DataPlane.open_connections`. The number is at most a second old."""
        return self._supervisor.open_connections

    def _keep_counters(self, worker: WorkerProcess) -> None:
        """Record the counters of a worker that has ended."""
        for name, counters in worker.counters.items():
            if name in self._frontends:
                sums = replace(counters, active=0, affinity_entries=0)
                self._past[name] = _sum((self._past.get(name, Counters()), sums))


def _sum(parts: Iterable[Counters]) -> Counters:
    return Counters(*map(sum, zip(*map(astuple, parts), strict=True)))
