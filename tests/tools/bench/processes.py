"""What a process and all that it started have used: CPU time and memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """In KiB. The proportional set size (PSS) counts a page that n processes share as an n-th of a page for each."""

    rss: int
    pss: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss)

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.rss - other.rss, self.pss - other.pss)


def family(root: int) -> list[int]:
    """The process and its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats().items():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def cpu_seconds(root: int) -> float:
    """User and system time so far of a process and its descendants, those included that they have waited for."""
    stats = _stats()
    return sum(sum(map(int, stats[pid][11:15])) for pid in family(root) if pid in stats) / _TICKS_PER_S


def ended_seconds() -> float:
    """User and system time of the children of this process that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def softirq_seconds() -> float:
    """System time of the kernel's threads that take over network work when a core has much of it. All else of that work
    counts for the process in which it happens to be done."""
    ticks = sum(sum(map(int, fields[11:13])) for _, name, fields in _all_stats() if name.startswith("ksoftirqd/"))
    return ticks / _TICKS_PER_S


def memory(root: int) -> Memory:
    """Of a process and its descendants together; of those that have not ended meanwhile."""
    total = memory_of(root)
    for pid in family(root):
        if pid != root:
            with suppress(FileNotFoundError, ProcessLookupError):
                total += memory_of(pid)
    return total


def memory_of(pid: int) -> Memory:
    """Of one process. OSError when it is gone."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split(":")
        found[name] = int(size.split()[0])
    return Memory(found["Rss"], found["Pss"])


def _stats() -> dict[int, list[str]]:
    """By process id, what /proc/PID/stat says behind the name."""
    return {pid: fields for pid, _, fields in _all_stats()}


def _all_stats() -> Iterator[tuple[int, str, list[str]]]:
    """Of each process its id, its name, and what /proc/PID/stat says behind that. A name is in parentheses, and may
    hold parentheses."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(entry.name), head.partition("(")[2], rest.split()
