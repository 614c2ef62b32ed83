"""Decides whether the proxy is live, healthy and ready (pure). `routes` serves the result over HTTP.

The rule is kube-proxy's (pkg/proxy/healthcheck): the proxy is healthy unless a change has waited for more than twice
the sync period, which happens only if syncs fail or do not end. An idle proxy is healthy. Before its first successful
sync, the proxy is live but not healthy (kube-proxy does not even listen until then). Readiness, which kube-proxy does
not have, ends when the drain begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kubeproxy.model import Family


class Reason(StrEnum):
    """The kinds of problems of the daemon, the worst first.

    All readers use this one list: the head of the status, its page, ``/readyz``, and the label of
    ``kubeproxy_degraded``.
    """

    DRAINING = "draining"
    STARTING = "starting"
    SYNC = "sync"
    """A sync has failed and is being retried."""
    LATE = "late"
    """A change has waited for a sync for too long."""
    EXHAUSTED = "exhausted"
    NODE = "node"
    """The cluster keeps load balancers away from this node, or does not know the node."""
    WORKERS = "workers"
    CONNTRACK = "conntrack"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    RESCUE = "rescue"
    """Failed connections of the kernel path are not rescued, so clients meet dead endpoints."""
    SLOTS = "slots"
    """Frontends use the userspace path, or are refused, because the kernel path has no slots for them."""
    SERVER = "server"
    """A port for health or metrics cannot be opened."""
    OPERATOR = "operator"
    """A person has taken endpoints out by hand."""
    STALE = "stale"
    """The saved state of an earlier run is still served, because a source has not delivered a complete list since the
    start."""
    KUBERNETES = "kubernetes"
    """The API server is unreachable, so changes of objects are not known, or some objects exceed the memory limit."""
    CONFIGURATION = "configuration"
    MANIFESTS = "manifests"
    """A manifest is faulty, so its contents are not in effect."""
    LEFTOVERS = "leftovers"
    """Rules of another proxy are in force."""
    LOG = "log"
    ACCESS_LOG = "access-log"


DEGRADES_ONLY: Final = frozenset(
    (
        *(Reason.CONNTRACK, Reason.DESCRIPTORS, Reason.MEMORY, Reason.RESCUE, Reason.SLOTS, Reason.SERVER),
        *(Reason.STALE, Reason.KUBERNETES, Reason.CONFIGURATION, Reason.MANIFESTS, Reason.LEFTOVERS),
        *(Reason.OPERATOR, Reason.LOG, Reason.ACCESS_LOG),
    )
)
"""The problems during which the daemon still serves and applies changes."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health at one moment. Times are seconds of the proxier's clock."""

    now: float
    last_updated: float | None
    """When a sync last succeeded. It is None before the first success."""
    on_time: bool
    """Whether no change has waited for a sync for too long."""
    node_eligible: bool
    """Whether the node takes new connections. It takes none if it is being deleted, or has a taint that announces its
    deletion."""
    draining: bool
    failing: str | None
    """Why the last sync failed, or None if it did not fail."""
    families: tuple[Family, ...]
    degraded: Mapping[Reason, str] = field(default_factory=dict)
    """The problems that other parts have found, in words."""
    node_exists: bool = True
    """Whether the cluster has a Node for this node."""
    exhausted: str | None = None
    """Why no client could be served for minutes, or None if clients are served."""

    @property
    def live(self) -> bool:
        """Return whether /livez succeeds, which means that the process needs no restart. A deleted node is no reason to
        restart."""
        return self.on_time

    @property
    def healthy(self) -> bool:
        """Return whether /healthz succeeds, which tells load balancers to send new connections to this node. It fails
        before the first sync, when kube-proxy would not even listen."""
        return self.last_updated is not None and self.on_time and self.node_eligible and self.exhausted is None

    @property
    def reasons(self) -> Mapping[Reason, str]:
        """Return all problems in words, the worst first. The result is empty if nothing is wrong."""
        found = dict(self.degraded)
        if self.draining:
            found[Reason.DRAINING] = "the process ends when its connections have"
        elif self.last_updated is None:
            found[Reason.STARTING] = "the first sync is not complete"
        if self.failing:
            found[Reason.SYNC] = self.failing
        if not self.on_time:
            found[Reason.LATE] = "a change has waited for longer than twice the sync period"
        if self.exhausted:
            found[Reason.EXHAUSTED] = self.exhausted
        if not self.node_exists:
            found[Reason.NODE] = (
                "the cluster has no Node of this name, so load balancers send no clients here;"
                " if the Node has another name, set --hostname-override"
            )
        elif not self.node_eligible:
            found[Reason.NODE] = "the node is being deleted or will be; load balancers send no clients here"
        return {reason: found[reason] for reason in Reason if reason in found}

    @property
    def ready(self) -> bool:
        """Return whether /readyz succeeds: a sync has succeeded, and the process is not about to end."""
        return not self.draining and self.last_updated is not None


class ProxyHealth:
    """Collects the proxier's syncs and other facts as `Health`. `now` is monotonic, in seconds."""

    def __init__(self, *, timeout_s: float, families: Iterable[Family] = (Family.IPV4,)) -> None:
        self.timeout_s = timeout_s
        """For how many seconds a change may wait: twice the sync period, as in kube-proxy. A reload may change it."""
        self._families = tuple(families)
        self._last_updated: float | None = None
        self._waiting_since: float | None = None
        self._failing: str | None = None
        self._node_eligible = self._node_exists = True
        self._draining = False
        self._degraded: dict[Reason, dict[str, str]] = {}
        self._exhausted: str | None = None

    def queued(self, now: float) -> None:
        """Record that a change waits for a sync."""
        if self._waiting_since is None:
            self._waiting_since = now

    def updated(self, now: float) -> None:
        """Record a sync after which no change waits."""
        self._last_updated = now
        self._waiting_since = None

    def progressed(self, now: float) -> None:
        """Record a sync after which further changes wait. Their wait begins now.

        Under constant changes a change may always be waiting, but no single one waits for too long.
        """
        if self._waiting_since is not None:
            self._waiting_since = now

    def failing(self, reason: str | None) -> None:
        """Record why a sync failed. None records that syncs work again."""
        self._failing = reason

    def node_eligible(self, eligible: bool, *, exists: bool = True) -> None:
        """Record whether the node takes new connections, and whether the cluster has a Node for it.

        As in kube-proxy, a node takes no new connections if it is being deleted or has the taint
        ToBeDeletedByClusterAutoscaler. Both values are true before the first call.
        """
        self._node_eligible = eligible
        self._node_exists = exists

    def degraded(self, reason: Reason, problem: str | None, *, part: str = "") -> None:
        """Record a problem, in words, that does not make the node unhealthy. With None the problem is over.

        Problems of different parts with the same reason are kept separately.
        """
        problems = self._degraded.setdefault(reason, {})
        if problem is None:
            problems.pop(part, None)
        else:
            problems[part] = problem

    def exhausted(self, reason: str | None) -> None:
        """Record why no client could be served for minutes, or with None that clients are served.

        The process stays live, because a restart would cut open connections.
        """
        self._exhausted = reason

    def draining(self) -> None:
        """Record that the process is draining: it exits when its connections have ended."""
        self._draining = True

    def at(self, now: float) -> Health:
        """Return the health at the time `now`, in seconds of the proxier's clock."""
        late = self._waiting_since is not None and now - self._waiting_since >= self.timeout_s
        return Health(
            now=now,
            last_updated=self._last_updated,
            on_time=self._last_updated is None or not late,
            node_eligible=self._node_eligible,
            draining=self._draining,
            failing=self._failing,
            families=self._families,
            degraded={reason: "; ".join(each.values()) for reason, each in self._degraded.items() if each},
            node_exists=self._node_exists,
            exhausted=self._exhausted,
        )
