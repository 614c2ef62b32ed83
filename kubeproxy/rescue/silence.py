"""Finds endpoints that do not answer, from the times in the kernel's sets.

The sets have only the times of the last SYN to each endpoint and of its last answer. So an endpoint is silent if it was
sent a SYN, and has answered none for `PATIENCE_S` since then. An endpoint that answers some clients is not silent.

The kernel gives each time as the span until an element expires, so this process must know when the kernel computed the
span. If this process was descheduled during the reading, the times are inexact by up to `blur_s` seconds, and smaller
differences are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeproxy.model import Target

PATIENCE_S: Final = 0.25
"""How long an endpoint may take to answer: as long as the first step of a dial on the userspace path."""
PATIENCE_LIMIT_S: Final = 0.9
"""The longest time that an endpoint on a slow path may take. After a second the client retransmits the SYN."""
SLOW_MAX: Final = 16_384
"""For how many endpoints a slow path is remembered. The number is bounded, because each new pod may have a new
address."""
RESOLUTION_S: Final = 0.005
"""Times that differ by less count as equal, because the kernel counts in jiffies, mostly of 4 ms. So a SYN this soon
after an answer counts as answered. If it was not, the client retransmits it after a second."""
BLUR_LIMIT_S: Final = 0.1
"""A reading whose times are less exact than this is ignored."""
LATE_S: Final = 0.1
"""If a check begins this late, it finds nothing silent: other processes may have been as late as this one."""
LATE_MAX: Final = 3
"""How many late checks in a row are skipped. The next one is used, but a dial confirms every silence that it finds."""


class Lateness:
    """Records whether this process makes its checks in time."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def looked(self, late_s: float) -> None:
        """Record that a check began this long after it was due."""
        self._in_a_row = self._in_a_row + 1 if late_s > LATE_S else 0

    @property
    def late(self) -> bool:
        """Return whether the last check was late."""
        return self._in_a_row > 0

    @property
    def judges(self) -> bool:
        """Return whether the last check may be used: it was in time, or enough late ones have been skipped."""
        return not self.late or self._in_a_row > LATE_MAX


class SilenceWatch:
    """Watches the endpoints of one family that were sent a SYN and have not answered yet."""

    def __init__(self) -> None:
        self._since: dict[Target, float] = {}
        """When the wait for an answer began, in monotonic seconds."""
        self._reported: dict[Target, float] = {}
        """For each silent endpoint, the time of the SYN after which it was found silent. Only a later SYN begins a new
        wait."""
        self._patience: dict[Target, float] = {}
        """The seconds that endpoints on a slow path may take. Those recorded longest ago come first."""

    def look(
        self, asked: Mapping[Target, float], answered: Mapping[Target, float], now: float, *, blur_s: float = 0.0
    ) -> list[Target]:
        """Return the endpoints that have become silent. All times are monotonic seconds; each may be too early by up to
        `blur_s`."""
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
        """Return whether at the last check some endpoint was sent a SYN and had not answered yet."""
        return bool(self._since)

    def measured(self, target: Target, answer_s: float) -> None:
        """Record how many seconds an endpoint took to answer a dial, so that a slow path does not count as silence."""
        patience_s = min(2 * answer_s, PATIENCE_LIMIT_S)
        self._patience.pop(target, None)
        if patience_s > PATIENCE_S:
            self._patience[target] = patience_s
            if len(self._patience) > SLOW_MAX:
                del self._patience[next(iter(self._patience))]
