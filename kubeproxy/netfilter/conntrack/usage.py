"""Reads how full the kernel's connection tracking is.

Every redirected connection needs an entry there, and so does every other on the node. When it is full, the kernel drops
first packets of connections silently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/proc/sys/net/netfilter")
STATISTICS = Path("/proc/net/stat/nf_conntrack")
"""Both are of this process's network namespace, and missing until the kernel tracks connections. The limit is that of
the first namespace; it holds in each."""

NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackRoom:
    """Connection tracking at one moment."""

    entries: int
    limit: int
    """0: none."""
    dropped: int
    """First packets dropped for want of room, since the start of the namespace."""

    def complaint(self, before: ConntrackRoom | None) -> str | None:
        """The warning for an operator; None: there is none. `before`: the last reading, since which losses count."""
        lost = self.dropped - before.dropped if before is not None else 0
        if lost > 0:
            what = f"the kernel's connection tracking was full, and {lost} new connections lost their first packet"
        elif self.limit and self.entries >= NEARLY_FULL * self.limit:
            what = "the kernel's connection tracking is nearly full"
        else:
            return None
        return f"{what} ({self.entries} entries of {self.limit}); raise net.netfilter.nf_conntrack_max"


def look(*, settings: Path = SETTINGS, statistics: Path = STATISTICS) -> ConntrackRoom | None:
    """The present usage; None when the kernel does not track connections, or does not report them."""
    try:
        entries, limit = (int((settings / f"nf_conntrack_{name}").read_text()) for name in ("count", "max"))
        names, *processors = (line.split() for line in statistics.read_text().splitlines())
        column = names.index("drop")
        return ConntrackRoom(entries=entries, limit=limit, dropped=sum(int(it[column], 16) for it in processors))
    except (OSError, ValueError, IndexError):
        return None
