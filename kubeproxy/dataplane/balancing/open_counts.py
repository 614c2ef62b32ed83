"""Counts the connections and sessions that are open on this node to each endpoint of a frontend.

Workers share a table in memory. It has a row for each worker, and a column for each endpoint of a frontend whose
scheduler needs these counts. A worker writes only to its own row, so no lock is needed, and reads all rows. The control
process assigns the columns (`kubeproxy.dataplane.workers.columns`), and clears the row of a worker that has died.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence

from kubeproxy.model import Target

COLUMNS = 1 << 16
"""The number of columns, for endpoints of all frontends. If they are used up, the endpoints of further frontends are
counted by each worker alone. Pages of the table that are never written take no memory."""
ROW_BYTES = 4 * COLUMNS


class SharedRows:
    """The shared table, as seen by a worker."""

    def __init__(self, fd: int, *, row: int) -> None:
        """Map the table. The caller may close the descriptor afterwards."""
        cells = memoryview(mmap.mmap(fd, 0)).cast("i")
        self.rows = tuple(cells[at : at + COLUMNS] for at in range(0, len(cells), COLUMNS))
        self.own = self.rows[row]


class OpenCounts:
    """The numbers of open connections and sessions to the endpoints of one frontend."""

    __slots__ = ("_columns", "_shared", "here")

    def __init__(self, shared: SharedRows | None) -> None:
        """`shared` is None if there are no other workers."""
        self._shared = shared
        self._columns: dict[Target, int] = {}
        self.here: Counter[Target] = Counter()
        """The number open in this process, by endpoint. Endpoints without any are left out."""

    def opened(self, target: Target) -> None:
        """Count a connection or session to an endpoint."""
        self._add(target, 1)

    def closed(self, target: Target) -> None:
        """Stop counting a connection or session. Its endpoint may have left the Service meanwhile."""
        self._add(target, -1)

    def _add(self, target: Target, change: int) -> None:
        self.here[target] += change
        if not self.here[target]:
            del self.here[target]
        if self._columns and self._shared is not None and (column := self._columns.get(target)) is not None:
            self._shared.own[column] += change

    def of(self, target: Target) -> int:
        """Return the number open to an endpoint in all workers."""
        if self._shared is None or (column := self._columns.get(target)) is None:
            return self.here.get(target, 0)
        return sum([row[column] for row in self._shared.rows])

    def share(self, endpoints: Sequence[Target], columns: Sequence[int]) -> None:
        """Use these columns of the table from now on, one for each endpoint. If `columns` is empty, count in this
        process alone."""
        if self._shared is None:
            return
        wanted = dict(zip(endpoints, columns, strict=False))
        before, self._columns = self._columns, wanted
        for target, column in before.items():
            if wanted.get(target) != column:
                self._shared.own[column] -= self.here.get(target, 0)
        for target, column in wanted.items():
            if before.get(target) != column:
                self._shared.own[column] += self.here.get(target, 0)
