"""Assigns cores to the proxy and to the load."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cores:
    """The proxy's own cores, and those of the load generators and backends."""

    proxy: tuple[int, ...]
    load: tuple[int, ...]

    @staticmethod
    def split(proxies: int = 1) -> Cores:
        """The last `proxies` of this process's cores are the proxy's, the others the load's. A machine with too few
        shares them."""
        usable = sorted(os.sched_getaffinity(0))
        taken = min(proxies, max(1, len(usable) - 1))
        return Cores(proxy=tuple(usable[-taken:]), load=tuple(usable[:-taken] or usable))

    @staticmethod
    def shared() -> Cores:
        """The proxy and the load use every core, as on a node with pods."""
        usable = tuple(sorted(os.sched_getaffinity(0)))
        return Cores(proxy=usable, load=usable)


def pinned(cores: tuple[int, ...], *command: str) -> list[str]:
    """The command, pinned to these cores with all its child processes."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]


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
