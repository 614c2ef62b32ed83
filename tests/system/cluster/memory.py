"""The memory of our pods, as the kernel counts it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.system.cluster.node import Node

_PARTS: Final = {
    "container init": r"container_init\.py",
    "control process": r"kubeproxy run",
    "worker": r"dataplane\.workers\.main",
    "rescue process": r"rescue\.main",
}


def part_of(command_line: str) -> str | None:
    """Which of our processes has that command line, or None if it is none of ours."""
    return next((part for part, pattern in _PARTS.items() if re.search(pattern, command_line)), None)


def processes_of(node: Node) -> Mapping[int, str]:
    """Our processes on a node by process id, each with its part."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            part = part_of((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            if part is not None and _is_below(process, node.pid):
                found[int(process.name)] = part
    return found


def pss_mib(pid: int) -> float:
    """The proportional set size (PSS) of a process in MiB, 0 if it has ended."""
    try:
        found = re.search(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found is not None else 0.0


def of(node: Node) -> Mapping[str, list[float]]:
    """The memory of our processes on a node, in MiB, by part."""
    found: dict[str, list[float]] = {}
    for pid, part in processes_of(node).items():
        found.setdefault(part, []).append(pss_mib(pid))
    return found


def _is_below(process: Path, ancestor: int) -> bool:
    """Whether a process descends from another one, whatever namespace of processes it is in."""
    pid = int(process.name)
    while pid > 1 and pid != ancestor:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    return pid == ancestor
