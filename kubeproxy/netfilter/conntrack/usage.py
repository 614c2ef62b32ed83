"""Reads how full the kernel's conntrack table is.

Every redirected connection needs an entry, as does every other connection on the node. When the table is full, the
kernel silently drops the first packets of connections.
"""

from __future__ import annotations

from pathlib import Path

from kubeproxy.model.conntrack_usage import ConntrackRoom

SETTINGS = Path("/proc/sys/net/netfilter")
STATISTICS = Path("/proc/net/stat/nf_conntrack")
"""The file of statistics. Like the settings, it is that of this process's network namespace, and does not exist until
the kernel tracks connections. The limit is that of the initial namespace, and applies in each."""


def look(*, settings: Path = SETTINGS, statistics: Path = STATISTICS) -> ConntrackRoom | None:
    """Return the present usage, or None if the kernel does not track connections or does not report the usage."""
    try:
        entries, limit = (int((settings / f"nf_conntrack_{name}").read_text()) for name in ("count", "max"))
        names, *processors = (line.split() for line in statistics.read_text().splitlines())
        column = names.index("drop")
        return ConntrackRoom(entries=entries, limit=limit, dropped=sum(int(it[column], 16) for it in processors))
    except (OSError, ValueError, IndexError):
        return None
