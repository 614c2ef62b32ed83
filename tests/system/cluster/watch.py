"""What our processes on a node take during an event, and until when those of before are there."""

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
        self._node = node
        self._seen: dict[int, tuple[float, float]] = {}
        """When each process was seen last (Unix time), and the seconds of processor time that it had taken."""
        self._before_s = 0.0
        self._begun: Set[int] = frozenset()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._begun = frozenset(pid for pid, part in memory.processes_of(self._node).items() if part in _SERVING)
        self._before_s = sum(taken for _, taken in self._seen.values())
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
        return sum(taken for _, taken in self._seen.values()) - self._before_s

    def gone_at(self) -> float | None:
        """When the last process was seen that served at the beginning and does not now (Unix time), or None."""
        living = memory.processes_of(self._node).keys()
        return max((self._seen[pid][0] for pid in self._begun - living), default=None)

    def _watch(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._look()

    def _look(self) -> None:
        now, sizes = time.time(), 0.0
        for pid in memory.processes_of(self._node):
            with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self._seen[pid] = now, (int(fields[11]) + int(fields[12])) / _TICKS
                sizes += memory.pss_mib(pid)
        self.most_mib = max(self.most_mib, sizes)


_SERVING: Final = ("control process", "worker")
