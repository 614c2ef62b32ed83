"""The rescue of failed connections of the kernel path: ejected endpoints, and what the rescue process has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from kubeproxy.model.frontend import Target
from kubeproxy.model.service import Protocol


@dataclass(frozen=True, slots=True)
class Ejection:
    """Why, and until when, the kernel leads no new connections to an endpoint. Times are the event loop's seconds."""

    reason: str
    """``refused``, ``unreachable`` or ``silent``; from a worker also ``timeout``."""
    noticed_by: str
    """``rescue`` if a client's packet on the kernel path has shown the failure, or ``worker`` if a dial on the
    userspace path has."""
    since: float
    until: float
    """When the next dial is due."""
    delay_s: float
    """The time from the last failure to the next dial."""
    failures: int = 1
    """The number of failures in a row."""
    tenants: frozenset[str] = frozenset()
    """The namespaces of the Services that had the endpoint when it failed."""


@dataclass(frozen=True, slots=True)
class RescueCounts:
    """The counts of a rescue process since its start. The control process adds those of all its rescue processes."""

    copied: int = 0
    """The number of SYNs that were copied."""
    refused: int = 0
    """The number of reports of refused connections."""
    unreachable: int = 0
    """The number of reports of ICMP errors."""
    resent: int = 0
    """The number of packets that were sent again."""
    given_up: int = 0
    """The number of SYNs that were sent again as often as allowed. Their clients then repeat them."""
    unknown: int = 0
    """The number of reports without a copy of the SYN, or with a datagram that was not quoted in whole."""
    unsent: int = 0
    """The number of packets that the kernel did not send."""
    overflows: int = 0
    """How often the kernel had no room for a report or a copy."""
    held: int = 0
    """The number of copies that are kept now."""

    @property
    def reports(self) -> int:
        """Return the number of reported failures."""
        return self.refused + self.unreachable

    def plus(self, later: RescueCounts) -> RescueCounts:
        """Return the counts of a process and of a later one together."""
        sums = (before + now for before, now in zip(astuple(self), astuple(later), strict=True))
        return replace(RescueCounts(*sums), held=later.held)


@dataclass(frozen=True, slots=True)
class RescueState:
    """The rescue at one moment."""

    working: bool
    """Whether failed connections are rescued now."""
    changed_at: float
    """Since when `working` has its value, in the event loop's seconds."""
    problem: str
    """Why failed connections are not rescued. It is empty if they are, or if the rescue is about to start."""
    restarts: int
    """How often the rescue process was started again."""
    counts: RescueCounts
    ejections: Mapping[tuple[str, str], int]
    """The number of ejections so far, by reason and by the part that has noticed the failure."""
    ejected: Mapping[tuple[Protocol, Target], Ejection]
    """The endpoints to which the kernel leads no new connections now."""
