"""Reports what the proxier does, whenever something has changed: by log lines, and by calls of the observer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum

import structlog

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import DrainState
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.proxier.observer import ProxierObserver

log = structlog.get_logger(__name__)

_TRIGGERS = 10_000
"""The largest number of trigger times that are kept while changes cannot take effect."""

Problems = Mapping[ServiceName, tuple[str, ...]]
"""The Services that are not served, or only in part, each with the reasons."""


class Part(StrEnum):
    """The parts of the proxier that can fail as a whole."""

    DATA_PLANE = "data plane"
    NETFILTER = "netfilter"
    CONNTRACK = "conntrack"


class Reports:
    """Remembers what was reported last, and reports the differences."""

    def __init__(self, observer: ProxierObserver) -> None:
        self.observer = observer
        self.problems: Problems = {}
        self.health: Mapping[ServiceName, tuple[int, int]] = {}
        """The health check node ports, each with its number of ready endpoints on this node."""
        self.failing: dict[Part, str] = {}
        """The parts that fail, each with its last error."""
        self.pending_since: float | None = None
        """When the oldest change that is not in effect arrived, or None if everything is in effect."""
        self.has_settled = False
        """Whether all known changes have been in effect at some time."""
        self._drains: Mapping[ServiceName, DrainState] = {}
        self._triggers: deque[str] = deque(maxlen=_TRIGGERS)

    # Pending changes.

    def queued(self, now: float) -> None:
        """Report that a change is not in effect yet. This is reported only once until `settled`."""
        if self.pending_since is None:
            self.pending_since = now
            self.observer.queued()

    def triggered(self, times: Iterable[str]) -> None:
        """Store the times at which the cluster made the changes that are now taking effect."""
        self._triggers += times

    def settled(self) -> None:
        """Report that every known change is in effect."""
        self.has_settled, self.pending_since = True, None
        self.observer.settled(tuple(self._triggers))
        self._triggers.clear()

    # Failing parts.

    @property
    def failure(self) -> str | None:
        """Return why a part cannot be updated, or None if all parts can."""
        return "; ".join(f"{part}: {reason}" for part, reason in self.failing.items()) or None

    def failed(self, part: Part, error: KubeproxyError) -> None:
        """Report a failure of netfilter or the data plane."""
        self.observer.failed(error)
        self._note_failure(part, error)

    def conntrack_failed(self, error: KubeproxyError) -> None:
        """Report that stale conntrack entries could not be listed or deleted."""
        self._note_failure(Part.CONNTRACK, error)
        self.observer.conntrack_failed(error)

    def _note_failure(self, part: Part, error: KubeproxyError) -> None:
        reason = str(error)
        if self.failing.get(part) != reason:
            log.error("update failed, retrying", part=part.value, reason=reason)
        self.failing[part] = reason

    def recovered(self, part: Part) -> None:
        """Report that a part works again, if it was failing."""
        if self.failing.pop(part, None) is not None:
            log.info("update succeeded again", part=part.value)

    # The state at the end of a round.

    def report(self, problems: Problems, drains: Mapping[ServiceName, DrainState]) -> None:
        """Report the problems of Services and the states of drain requests, if they have changed since the last
        call."""
        if problems != self.problems:
            _log_difference(self.problems, problems)
            self.problems = problems
            self.observer.services_degraded(problems)
        if drains != self._drains:
            self._drains = drains
            self.observer.drains_changed(drains)

    def report_health(self, health: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Report the health check node ports with their numbers of ready endpoints, if they have changed."""
        if health != self.health:
            self.health = health
            self.observer.service_health(health)


def _log_difference(before: Problems, now: Problems) -> None:
    for service in now.keys() | before.keys():
        for problem in now.get(service, ()):
            if problem not in before.get(service, ()):
                log.warning("service has a problem", service=str(service), problem=problem)
        if service in before and service not in now:
            log.info("service problem resolved", service=str(service))
