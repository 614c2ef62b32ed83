"""Whether the proxy is live, healthy and ready (pure); `routes` answers it over HTTP.

The rule is kube-proxy's (pkg/proxy/healthcheck): the proxy is healthy unless a change has waited for more than twice
the sync period, which happens only if syncs fail or do not end. An idle or starting proxy is healthy. Readiness, which
kube-proxy does not have, needs a first successful sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubeproxy.model import Family


@dataclass(frozen=True, slots=True)
class Health:
    """The health at one moment. Times are seconds of the proxier's clock."""

    now: float
    last_updated: float | None
    """None: no sync has succeeded yet."""
    on_time: bool
    """No change has waited for too long."""
    node_eligible: bool
    """The node is not being deleted and has no taint that announces it."""
    draining: bool
    failing: str | None
    """Why the last sync failed; None if it did not."""
    families: tuple[Family, ...]
    degraded: tuple[str, ...] = ()
    """Problems for the operator that do not make the node unhealthy."""
    node_exists: bool = True
    """Whether the cluster has a Node for this node."""
    exhausted: str | None = None
    """Why no client could be served for minutes; None: clients are served."""

    @property
    def live(self) -> bool:
        """Whether /livez succeeds: the process needs no restart. A node under deletion is no reason to restart."""
        return self.on_time

    @property
    def healthy(self) -> bool:
        """Whether /healthz succeeds: load balancers may send new connections to this node."""
        return self.on_time and self.node_eligible and self.exhausted is None

    @property
    def unready(self) -> str | None:
        """Why /readyz fails; None: it succeeds."""
        if self.draining:
            return "draining: the process ends when its connections have"
        if self.last_updated is None:
            return f"no sync has succeeded yet{f': {self.failing}' if self.failing else ''}"
        return None


class ProxyHealth:
    """Collects the proxier's syncs and other facts as `Health`. `now` is monotonic, in seconds."""

    def __init__(self, *, timeout_s: float, families: Iterable[Family] = (Family.IPV4,)) -> None:
        self.timeout_s = timeout_s
        """Seconds that a change may wait: twice the sync period, as in kube-proxy. A reload may change it."""
        self._families = tuple(families)
        self._last_updated: float | None = None
        self._waiting_since: float | None = None
        self._failing: str | None = None
        self._node_eligible = self._node_exists = True
        self._draining = False
        self._degraded: dict[str, str] = {}
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
        """Record a sync during which further changes arrived; their wait begins now.

        Under constant changes there may be no moment without one, which is not late.
        """
        if self._waiting_since is not None:
            self._waiting_since = now

    def failing(self, reason: str | None) -> None:
        """Record why a sync failed; None: it works again."""
        self._failing = reason

    def node_eligible(self, eligible: bool, *, exists: bool = True) -> None:
        """Record whether the node takes new connections, and whether the cluster has a Node for it.

        As in kube-proxy: not deleted, not tainted ToBeDeletedByClusterAutoscaler. Both are true before the first call.
        """
        self._node_eligible = eligible
        self._node_exists = exists

    def degraded(self, part: str, reason: str | None) -> None:
        """Record a problem of a part that does not make the node unhealthy; None: it is over."""
        if reason is None:
            self._degraded.pop(part, None)
        else:
            self._degraded[part] = reason

    def exhausted(self, reason: str | None) -> None:
        """Record why no client could be served for minutes; None: clients are served.

        The process stays live: a restart would cut open connections.
        """
        self._exhausted = reason

    def draining(self) -> None:
        """Record that the process ends when its connections have."""
        self._draining = True

    def at(self, now: float) -> Health:
        """The health at a moment."""
        late = self._waiting_since is not None and now - self._waiting_since >= self.timeout_s
        return Health(
            now=now,
            last_updated=self._last_updated,
            on_time=self._last_updated is None or not late,
            node_eligible=self._node_eligible,
            draining=self._draining,
            failing=self._failing,
            families=self._families,
            degraded=tuple(self._degraded.values()),
            node_exists=self._node_exists,
            exhausted=self._exhausted,
        )
