"""Which core is whose, and how much of it was used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cores:
    """The proxy's own core, and those of the load generators and backends."""

    proxy: tuple[int, ...]
    load: tuple[int, ...]

    @staticmethod
    def split(proxies: int = 1) -> Cores:
        """The last `proxies` of the cores that this process may use are the proxy's, the others the load's. A machine
        with too few shares them."""
        usable = sorted(os.sched_getaffinity(0))
        taken = min(proxies, max(1, len(usable) - 1))
        return Cores(proxy=tuple(usable[-taken:]), load=tuple(usable[:-taken] or usable))


def pinned(cores: tuple[int, ...], *command: str) -> list[str]:
    """The command, held to these cores with all that it starts."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]


def cpu_seconds(root: int) -> float:
    """User and system time so far of a process and its descendants."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may itself hold spaces and parentheses; proc(5) counts the fields behind it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(entry.name)
        times[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        children.setdefault(int(fields[1]), []).append(pid)
    family = [root]
    for pid in family:
        family.extend(children.get(pid, ()))
    return sum(times.get(pid, 0.0) for pid in family)


def busy_seconds(cores: tuple[int, ...]) -> float:
    """How long these cores have not been idle so far: processes, the kernel and its interrupts."""
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, fields)
            ticks += user + nice + system + irq + softirq + steal
    return ticks / _TICKS_PER_S
