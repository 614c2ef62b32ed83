"""How many workers suit this machine."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

MOST_BY_ITSELF = 4
"""Workers, where nobody says how many: the control process, the pods and the kernel want something, too."""


def workers_for(count: int | None, *, root: Path = Path("/")) -> int:
    """The number wanted, or one for each CPU that this process may use, at most `MOST_BY_ITSELF`. `root` is where
    ``/proc`` and ``/sys`` are."""
    if count is not None:
        return count
    usable = len(os.sched_getaffinity(0))
    return max(1, min(usable, ceil(_quota(root)), MOST_BY_ITSELF))


def _quota(root: Path) -> float:
    """CPUs that this process's control groups grant, all in all (cgroup v2's cpu.max); `MOST_BY_ITSELF` where they say
    nothing."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return MOST_BY_ITSELF
    path = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")
    top = root / "sys/fs/cgroup"
    granted: float = MOST_BY_ITSELF
    for group in (top / path, *(top / path).parents):
        if not group.is_relative_to(top):
            break
        try:
            most, period = (group / "cpu.max").read_text().split()
            granted = min(granted, int(most) / int(period))
        except (OSError, ValueError):
            continue  # the topmost has none, and "max" is no limit
    return granted
