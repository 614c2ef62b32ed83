"""What our processes on a node take during an event, and when the workers of before have ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Set
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.system.cluster import memory
from tests.system.cluster.node import Node

PAUSE_S: Final = 0.2
"""Between two looks."""
_TICKS: Final = 100.0


class Watch:
    """Looks at our processes on a node again and again; a context manager."""

    def __init__(self, node: Node) -> None:
        self.most_mib = 0.0
        """The most memory of all of them at once (PSS)."""
        self.gone_at: float | None = None
        """When the workers of the beginning were all found to have ended (Unix time), or None while one is there."""
        self._node = node
        self._taken: dict[int, float] = {}
        """The seconds of processor time that each process had taken when it was seen last."""
        self._before_s = 0.0
        self._workers: Set[int] = frozenset()
        """Those of the beginning."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._workers = frozenset(pid for pid, part in memory.processes_of(self._node).items() if part == "worker")
        self._look()
        self._before_s = sum(self._taken.values())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """The processor time that they have taken meanwhile; the last moment of each is not seen."""
        return sum(self._taken.values()) - self._before_s

    def _watch(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._look()

    def _look(self) -> None:
        found, sizes = memory.processes_of(self._node), 0.0
        if self.gone_at is None and not self._workers & found.keys():
            self.gone_at = time.time()
        for pid in found:
            with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self._taken[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
                sizes += memory.pss_mib(pid)
        self.most_mib = max(self.most_mib, sizes)
