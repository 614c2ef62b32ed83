"""Finds endpoints that do not answer, from the times in the kernel's sets.

The sets have the last SYN to each endpoint and its last answer, not each SYN. So an endpoint is silent if it was asked,
and has not answered any SYN since then, for `PATIENCE_S`. An endpoint that answers some clients is not silent.

The kernel gives the times as spans until an element expires, and this process must know when the kernel has computed
each span. If it loses the processor while it reads them, they are inexact by the reading's `blur_s`, and no difference
within that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeproxy.model import Target

PATIENCE_S: Final = 0.25
"""How long an endpoint may take to answer. It is the first step of a dial on the userspace path."""
PATIENCE_LIMIT_S: Final = 0.9
"""The longest time that a slow path is allowed. After a second the client repeats the SYN, and its flow has expired."""
SLOW_MAX: Final = 16_384
"""How many endpoints on a slow path are remembered. Pods come and go, and each may have another address."""
RESOLUTION_S: Final = 0.005
"""Times that differ by less are equal, because the kernel counts in jiffies, mostly of 4 ms. So a SYN this soon after
an answer counts as answered. If it was not, the client repeats it after a second."""
BLUR_LIMIT_S: Final = 0.1
"""A reading that is less exact than this is not judged."""
LATE_S: Final = 0.1
"""A look that begins this late judges nothing: what this process could not do in time, others may not have done in time
either."""
LATE_MAX: Final = 3
"""How many late looks in a row judge nothing. The next one judges, and every silence that it finds is confirmed by a
dial."""


class Lateness:
    """Records whether this process looks in time."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def looked(self, late_s: float) -> None:
        """Note that a look has begun this long after it was due."""
        self._in_a_row = self._in_a_row + 1 if late_s > LATE_S else 0

    @property
    def late(self) -> bool:
        """Return whether the last look was late."""
        return self._in_a_row > 0

    @property
    def judges(self) -> bool:
        """Return whether the last look judges: it was in time, or came after too many looks that were not."""
        return not self.late or self._in_a_row > LATE_MAX


class SilenceWatch:
    """The endpoints of one family that have been asked and have not answered yet."""

    def __init__(self) -> None:
        self._since: dict[Target, float] = {}
        """When the wait for an answer began."""
        self._reported: dict[Target, float] = {}
        """The SYN after which the endpoint was found silent. Only another SYN begins a new wait."""
        self._patience: dict[Target, float] = {}
        """How long endpoints on a slow path may take. The longest known come first."""

    def look(
        self, asked: Mapping[Target, float], answered: Mapping[Target, float], now: float, *, blur_s: float = 0.0
    ) -> list[Target]:
        """Return the endpoints that have become silent. Times are monotonic seconds. Each stamp may be up to `blur_s`
        younger."""
        if blur_s > BLUR_LIMIT_S:
            return []
        since_before, reported_before = self._since, self._reported
        self._since, self._reported = {}, {}
        silent: list[Target] = []
        for target, asked_at in asked.items():
            settled_at = answered.get(target, float("-inf")) + RESOLUTION_S + blur_s
            if asked_at <= settled_at:
                continue
            if (reported_at := reported_before.get(target)) is not None:
                if asked_at <= reported_at + RESOLUTION_S + blur_s:
                    self._reported[target] = reported_at
                    continue
                settled_at = max(settled_at, reported_at + RESOLUTION_S)
            since = since_before.get(target, asked_at)
            if since <= settled_at:
                since = asked_at
            if now - since - blur_s < self._patience.get(target, PATIENCE_S):
                self._since[target] = since
            else:
                self._reported[target] = asked_at
                silent.append(target)
        return silent

    @property
    def waiting(self) -> bool:
        """Return whether an endpoint has been asked and has not answered yet, as of the last look."""
        return bool(self._since)

    def measured(self, target: Target, answer_s: float) -> None:
        """Note how long an endpoint took to answer a dial, so that a slow path is not taken for a dead endpoint."""
        patience_s = min(2 * answer_s, PATIENCE_LIMIT_S)
        self._patience.pop(target, None)
        if patience_s > PATIENCE_S:
            self._patience[target] = patience_s
            if len(self._patience) > SLOW_MAX:
                del self._patience[next(iter(self._patience))]
