"""The state of the rescue of failed connections on the kernel path: ejected endpoints, and the counts of the rescue
process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from kubeproxy.model.frontend import Target
from kubeproxy.model.service import Protocol


@dataclass(frozen=True, slots=True)
class Ejection:
    """An endpoint's ejection, during which the kernel sends the endpoint no new connections. Times are the event
    loop's, in seconds."""

    reason: str
    """The kind of failure: ``refused``, ``unreachable`` or ``silent``, and from a worker also ``timeout``."""
    noticed_by: str
    """Who has detected the failure: ``rescue`` by a client's packet on the kernel path, or ``worker`` by a dial on the
    userspace path."""
    since: float
    until: float
    """When the endpoint is dialed next, to find out whether it works again."""
    delay_s: float
    """The time from the last failure to the next dial, in seconds."""
    failures: int = 1
    """The number of failures in a row."""
    tenants: frozenset[str] = frozenset()
    """The namespaces of the Services that had the endpoint when it failed."""


@dataclass(frozen=True, slots=True)
class RescueCounts:
    """The counts of a rescue process since its start. The control process sums the counts of all rescue processes that
    it has started."""

    copied: int = 0
    """The number of SYNs that the process has received copies of."""
    refused: int = 0
    """The number of reports of refused connections."""
    unreachable: int = 0
    """The number of reports of ICMP errors."""
    resent: int = 0
    """The number of packets that were sent again."""
    given_up: int = 0
    """The number of SYNs that were not sent once more, because they had been sent again as often as allowed. The client
    then repeats the SYN itself."""
    unknown: int = 0
    """The number of reports for which there was no copy of the SYN, or which quoted only a part of the datagram."""
    unsent: int = 0
    """The number of packets that the kernel refused to send."""
    overflows: int = 0
    """How often the kernel's buffer had no room for a report or a copy."""
    held: int = 0
    """The number of copies in memory now."""

    @property
    def reports(self) -> int:
        """Return the number of reported failures of both kinds."""
        return self.refused + self.unreachable

    def plus(self, later: RescueCounts) -> RescueCounts:
        """Return the sum of these counts and of a later process's counts. The number of copies is the later
        process's."""
        sums = (before + now for before, now in zip(astuple(self), astuple(later), strict=True))
        return replace(RescueCounts(*sums), held=later.held)


@dataclass(frozen=True, slots=True)
class RescueState:
    """The state of the rescue at one moment."""

    working: bool
    """Whether failed connections are rescued now."""
    changed_at: float
    """When `working` got its present value, in the event loop's seconds."""
    problem: str
    """Why failed connections are not rescued, or empty if they are, or the rescue is about to start."""
    restarts: int
    """The number of restarts of the rescue process."""
    counts: RescueCounts
    ejections: Mapping[tuple[str, str], int]
    """The number of ejections so far, by reason and by who has detected the failure."""
    ejected: Mapping[tuple[Protocol, Target], Ejection]
    """The endpoints that are ejected now."""
