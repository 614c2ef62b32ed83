"""The state machine of leader election, in which several candidates compete for a Lease object. It is pure.

A Lease expires a fixed time after this candidate has seen it change, by the local clock, so the clocks of different
machines are never compared. `now` is in seconds of a clock that also advances while the process or the machine is
suspended. `kubeproxy.kubernetes.controller.leader_election` makes the requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

LEASE_S: Final = 15.0
RENEW_S: Final = 10.0
RETRY_S: Final = 2.0
"""The retry period. These three are the lease duration, renew deadline and retry period of kube-controller-manager, in
seconds."""
JITTER: Final = 1.2
"""A candidate waits a random time between RETRY_S and RETRY_S * (1 + JITTER) between two reads of the Lease
(client-go's JitterFactor)."""

BELIEVED_LEASES: Final = 10
"""Another holder's lease duration counts up to this multiple of this candidate's. Another candidate may have longer
settings, but a duration of 2,147,483,647 s must not stop all candidates until a person deletes the Lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The spec of a Lease. Its times are Unix seconds by the clock of the machine that wrote them, and are only for
    information."""

    holder: str = ""
    """The identity of the holder, or empty if the last holder has released the Lease."""
    duration_s: int = int(LEASE_S)
    acquired: float = 0.0
    renewed: float = 0.0
    transitions: int = 0


class Step(StrEnum):
    """The next step of a candidate."""

    CREATE = "create"
    """Create the Lease, because it does not exist."""
    TAKE = "take"
    """Take the Lease, because it is free or expired."""
    RENEW = "renew"
    """Renew the Lease, because this candidate holds it."""
    WAIT = "wait"
    """Wait, because another candidate holds the Lease."""


class LeaderElection:
    """The election as one candidate sees it. Raise ValueError for invalid durations."""

    def __init__(
        self, identity: str, *, lease_s: float = LEASE_S, renew_s: float = RENEW_S, retry_s: float = RETRY_S
    ) -> None:
        if not lease_s > renew_s:
            raise ValueError("leaseDuration must be greater than renewDeadline")
        if not renew_s > JITTER * retry_s:
            raise ValueError(f"renewDeadline must be greater than retryPeriod*{JITTER}")
        if not retry_s > 0:
            raise ValueError("retryPeriod must be greater than zero")
        self.identity = identity
        self.lease_s = lease_s
        self.renew_s = renew_s
        self.retry_s = retry_s
        self._record: LeaseRecord | None = None
        self._observed_at = 0.0
        self._renewed_at: float | None = None
        """When the last successful write of the Lease began, or None if this candidate is not the leader."""

    @property
    def record(self) -> LeaseRecord | None:
        """Return the Lease's record that was seen last, or None if there is no Lease."""
        return self._record

    def leading(self, now: float) -> bool:
        """Return whether this candidate leads: its last renewal is less than the renew deadline ago."""
        return self._renewed_at is not None and now - self._renewed_at < self.renew_s

    def lost(self, now: float) -> bool:
        """Return whether this candidate was the leader and no longer is."""
        return self._renewed_at is not None and not self.leading(now)

    def next_step(self, record: LeaseRecord | None, now: float) -> Step:
        """Store the record that was read from the server, and return the next step."""
        if record != self._record:
            self._record = record
            self._observed_at = now
        if record is None:
            return Step.CREATE
        if record.holder == self.identity:
            return Step.RENEW
        if self._renewed_at is not None:
            # Another candidate has taken the Lease, so this candidate has lost it before its own deadline.
            self._renewed_at = float("-inf")
            return Step.WAIT
        if not record.holder or now - self._observed_at >= self._believed_s(record):
            return Step.TAKE
        return Step.WAIT

    def _believed_s(self, record: LeaseRecord) -> float:
        """Return how long after its last change another holder's record is valid, in seconds."""
        return max(self.lease_s, min(record.duration_s, BELIEVED_LEASES * self.lease_s))

    def proposal(self, unix_s: float) -> LeaseRecord:
        """Return the record to be written to the Lease. `unix_s` is the present time."""
        before = self._record
        mine = LeaseRecord(
            holder=self.identity, duration_s=int(self.lease_s), acquired=unix_s, renewed=unix_s, transitions=0
        )
        if before is None:
            return mine
        if before.holder == self.identity:
            return replace(mine, acquired=before.acquired, transitions=before.transitions)
        return replace(mine, transitions=before.transitions + 1)

    def written(self, record: LeaseRecord, *, asked_at: float) -> None:
        """Note that the server has accepted `record`. `asked_at` is the time at which the request began, from which the
        renew deadline counts."""
        self._record = record
        self._observed_at = asked_at
        self._renewed_at = asked_at

    def release(self, unix_s: float) -> LeaseRecord | None:
        """Return the record that releases the Lease, or None if this candidate does not hold it."""
        if self._renewed_at is None or self._record is None or self._record.holder != self.identity:
            return None
        return replace(self._record, holder="", duration_s=1, renewed=unix_s, acquired=unix_s)

    def resign(self) -> None:
        """Give up leadership locally."""
        self._renewed_at = None
