"""How full the kernel's connection tracking is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEARLY_FULL: Final = 0.9
"""The fraction of the limit from which on a warning is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConntrackRoom:
    """Connection tracking at one moment."""

    entries: int
    limit: int
    """The size of the table, or 0 if there is no limit."""
    dropped: int
    """How many first packets were dropped because the table was full, since the start of the namespace."""

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for another entry."""
        return 0 < self.limit <= self.entries

    def complaint(self, before: ConntrackRoom | None) -> str | None:
        """Return a warning for the operator, or None. It counts the packets dropped since the reading `before`."""
        lost = self.dropped - before.dropped if before is not None else 0
        if lost > 0:
            what = f"the kernel's connection tracking was full, and {lost} new connections lost their first packet"
        elif self.limit and self.entries >= NEARLY_FULL * self.limit:
            what = "the kernel's connection tracking is nearly full"
        else:
            return None
        return f"{what} ({self.entries} entries of {self.limit}); raise net.netfilter.nf_conntrack_max"
