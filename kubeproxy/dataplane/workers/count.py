"""Computes the default number of workers for this machine."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

DEFAULT_MAX = 4
"""The largest default number of workers. The control process, the pods and the kernel also need CPU time."""


def workers_for(count: int | None, *, root: Path = Path("/")) -> int:
    """Return the configured number of workers, or by default one per usable CPU, up to `DEFAULT_MAX`. `root` is the
    directory that contains ``/proc`` and ``/sys``."""
    if count is not None:
        return count
    usable = len(os.sched_getaffinity(0))
    return max(1, min(usable, ceil(_quota(root)), DEFAULT_MAX))


def _quota(root: Path) -> float:
    """Return how many CPUs this process may use according to its control groups (cpu.max of cgroup v2), or
    `DEFAULT_MAX` without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return DEFAULT_MAX
    path = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")
    top = root / "sys/fs/cgroup"
    granted: float = DEFAULT_MAX
    for group in (top / path, *(top / path).parents):
        if not group.is_relative_to(top):
            break
        try:
            most, period = (group / "cpu.max").read_text().split()
            granted = min(granted, int(most) / int(period))
        except (OSError, ValueError):
            continue  # No limit: the root group has no cpu.max, and other groups may have "max".
    return granted
