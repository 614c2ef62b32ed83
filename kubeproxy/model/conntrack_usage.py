"""How full the kernel's connection tracking table is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEARLY_FULL: Final = 0.9
"""The fraction of the limit above which there is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackRoom:
    """The use of the connection tracking table at one moment."""

    entries: int
    limit: int
    """The largest number of entries, or 0 if there is no limit."""
    dropped: int
    """The number of packets of new connections that were dropped because the table was full, since the network
    namespace was created."""

    @property
    def is_full(self) -> bool:
        """Return whether the table has no room for another entry."""
        return 0 < self.limit <= self.entries

    def complaint(self, before: ConntrackRoom | None) -> str | None:
        """Return a warning for the operator if the table is full or nearly full, or packets were dropped since the
        reading `before`. Return None otherwise."""
        lost = self.dropped - before.dropped if before is not None else 0
        if lost > 0:
            what = f"the kernel's connection tracking was full, and {lost} new connections lost their first packet"
        elif self.limit and self.entries >= NEARLY_FULL * self.limit:
            what = "the kernel's connection tracking is nearly full"
        else:
            return None
        return f"{what} ({self.entries} entries of {self.limit}); raise net.netfilter.nf_conntrack_max"
