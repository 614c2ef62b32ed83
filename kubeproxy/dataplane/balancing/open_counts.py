"""How many connections and sessions are open at this node to each endpoint of a frontend.

Workers share a table in memory. It has a row for each worker, and a column for each endpoint of a frontend whose
scheduler asks for these counts. A worker writes only to its own row, so no lock is needed, and reads all rows. The
control process assigns the columns (`kubeproxy.dataplane.workers.columns`) and clears the row of a worker that has
died.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence

from kubeproxy.model import Target

COLUMNS = 1 << 16
"""The number of endpoints, over all frontends, that can be counted together. Each worker alone counts the endpoints of
further frontends. Pages of the table that are never written take no memory."""
ROW_BYTES = 4 * COLUMNS


class SharedRows:
    """The table as a worker sees it."""

    def __init__(self, fd: int, *, row: int) -> None:
        """Map the table. The caller may close the descriptor afterwards."""
        cells = memoryview(mmap.mmap(fd, 0)).cast("i")
        self.rows = tuple(cells[at : at + COLUMNS] for at in range(0, len(cells), COLUMNS))
        self.own = self.rows[row]


class OpenCounts:
    """The connections and sessions open to the endpoints of one frontend."""

    __slots__ = ("_columns", "_shared", "here")

    def __init__(self, shared: SharedRows | None) -> None:
        """`shared` is None if this is the only process."""
        self._shared = shared
        self._columns: dict[Target, int] = {}
        self.here: Counter[Target] = Counter()
        """The number open in this process, by endpoint, without zeros."""

    def opened(self, target: Target) -> None:
        """Count a connection or session to an endpoint."""
        self._add(target, 1)

    def closed(self, target: Target) -> None:
        """Count a connection or session no more. Its endpoint may have left the Service meanwhile."""
        self._add(target, -1)

    def _add(self, target: Target, change: int) -> None:
        self.here[target] += change
        if not self.here[target]:
            del self.here[target]
        if self._columns and self._shared is not None and (column := self._columns.get(target)) is not None:
            self._shared.own[column] += change

    def of(self, target: Target) -> int:
        """Return the number open to an endpoint, over all workers."""
        if self._shared is None or (column := self._columns.get(target)) is None:
            return self.here.get(target, 0)
        return sum([row[column] for row in self._shared.rows])

    def share(self, endpoints: Sequence[Target], columns: Sequence[int]) -> None:
        """Use these columns of the table from now on, one for each endpoint. Use none if the list is empty."""
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
