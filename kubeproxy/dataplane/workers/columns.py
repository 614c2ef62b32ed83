"""Manages the table in which workers count open connections (`balancing.open_counts`), for the control process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

from msgspec.structs import replace

from kubeproxy.dataplane.balancing.open_counts import COLUMNS, ROW_BYTES
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.model import FrontendName, Scheduler, Target

NO_COLUMN: Final = -1


class Columns:
    """Assigns columns to endpoints, and clears rows of dead workers."""

    def __init__(self, workers: int) -> None:
        """Create the table. Raise OSError if there is no memory for it."""
        self.fd = os.memfd_create("kubeproxy-open")
        """The descriptor of the table, which workers inherit."""
        os.ftruncate(self.fd, workers * ROW_BYTES)
        self._memory = mmap.mmap(self.fd, 0)
        self._of: dict[FrontendName, dict[Target, int]] = {}
        self._free: list[int] = []
        self._used = 0

    def assigned(self, message: SetEndpoints) -> SetEndpoints:
        """Return the message, with a column for each endpoint if its scheduler needs counts of all workers. Endpoints
        that stay keep their columns. If there are not enough columns, none are assigned, because an endpoint that each
        worker counts alone would seem to have fewer connections than the others."""
        wanted = message.endpoints if message.balancing.scheduler is Scheduler.LEAST_CONNECTIONS else ()
        before = self._of.pop(message.frontend, {})
        now = {target: before.pop(target, NO_COLUMN) for target in wanted}
        self._take_back(before)
        missing = sum(column == NO_COLUMN for column in now.values())
        if not wanted or missing > COLUMNS - self._used + len(self._free):
            self._take_back(now)
            return message
        self._of[message.frontend] = now
        for target, column in now.items():
            if column == NO_COLUMN:
                now[target] = self._next()
        return replace(message, columns=tuple(now.values()))

    def _next(self) -> int:
        if self._free:
            return heappop(self._free)
        self._used += 1
        return self._used - 1

    def release(self, frontend: FrontendName) -> None:
        """Free the columns of a frontend that is no longer served."""
        self._take_back(self._of.pop(frontend, {}))

    def _take_back(self, columns: Mapping[Target, int]) -> None:
        for column in columns.values():
            if column != NO_COLUMN:
                heappush(self._free, column)

    def clear(self, worker: int) -> None:
        """Clear the row of a worker that has ended, so that its connections no longer count."""
        self._memory[worker * ROW_BYTES : (worker + 1) * ROW_BYTES] = bytes(ROW_BYTES)

    def open_of(self, frontend: FrontendName) -> dict[Target, int]:
        """Return the number of open connections and sessions to each endpoint of a frontend with columns."""
        with memoryview(self._memory) as whole, whole.cast("i") as cells:
            rows = range(0, len(cells), COLUMNS)
            return {
                target: sum(cells[row + column] for row in rows)
                for target, column in self._of.get(frontend, {}).items()
            }

    def close(self) -> None:
        """Close the table. Running workers keep it. This may be called repeatedly."""
        if not self._memory.closed:
            self._memory.close()
            os.close(self.fd)
