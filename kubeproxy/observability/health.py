"""Is this proxy healthy, and is it ready? Decided here (pure), answered over HTTP elsewhere.

The rule is kube-proxy's (pkg/proxy/healthcheck): healthy unless a change has waited for more than twice the sync
period. It waits so long only if syncs fail or do not come to an end; a proxy that has nothing to do is healthy, and so
is one that still starts. Whether there has been a first sync is a matter of readiness, which kube-proxy does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubeproxy.model import Family


@dataclass(frozen=True, slots=True)
class Health:
    """How things stood at one moment. Times are of the clock that the proxier uses, in seconds."""

    now: float
    last_updated: float | None
    """None: no sync has succeeded yet."""
    on_time: bool
    """No change waits for too long."""
    node_eligible: bool
    """The node is neither being deleted nor about to be."""
    draining: bool
    failing: str | None
    """Why the last sync failed; None if it did not."""
    families: tuple[Family, ...]
    degraded: tuple[str, ...] = ()
    """What an operator should look at, although it is no reason to send clients elsewhere."""
    node_exists: bool = True
    """If it is not eligible: it is there at all."""
    exhausted: str | None = None
    """Why no client of any Service can be served, for minutes already; None: they can."""

    @property
    def live(self) -> bool:
        """What /livez answers: is it worth keeping the process? A node that is about to go is no reason to restart."""
        return self.on_time

    @property
    def healthy(self) -> bool:
        """What /healthz answers: should load balancers send new connections to this node?"""
        return self.on_time and self.node_eligible and self.exhausted is None

    @property
    def unready(self) -> str | None:
        """What /readyz answers: None if ready, else why not."""
        if self.draining:
            return "draining: the process is about to end"
        if self.last_updated is None:
            return f"no sync has succeeded yet{f': {self.failing}' if self.failing else ''}"
        return None


class ProxyHealth:
    """The proxier reports its syncs here, in the words of kube-proxy's health server. `now` is a monotonic clock."""

    def __init__(self, *, timeout_s: float, families: Iterable[Family] = (Family.IPV4,)) -> None:
        self.timeout_s = timeout_s
        """How long a change may wait: twice the sync period, as in kube-proxy. May be set anew on a reload."""
        self._families = tuple(families)
        self._last_updated: float | None = None
        self._waiting_since: float | None = None
        self._failing: str | None = None
        self._node_eligible = self._node_exists = True
        self._draining = False
        self._degraded: dict[str, str] = {}
        self._exhausted: str | None = None

    def queued(self, now: float) -> None:
        """A change arrived that a sync has to carry out."""
        if self._waiting_since is None:
            self._waiting_since = now

    def updated(self, now: float) -> None:
        """A sync succeeded; nothing waits any more."""
        self._last_updated = now
        self._waiting_since = None

    def progressed(self, now: float) -> None:
        """A sync succeeded, but more had come by its end. What waits now came after its beginning: where changes never
        cease there may be no moment without one, and that is not late."""
        if self._waiting_since is not None:
            self._waiting_since = now

    def failing(self, reason: str | None) -> None:
        """A sync failed, and why; None: what failed works again."""
        self._failing = reason

    def node_eligible(self, eligible: bool, *, exists: bool = True) -> None:
        """Whether the node may go on taking new connections (kube-proxy: not deleted, and not tainted
        ToBeDeletedByClusterAutoscaler), and whether the cluster has it. True until somebody says otherwise."""
        self._node_eligible = eligible
        self._node_exists = exists

    def degraded(self, part: str, reason: str | None) -> None:
        """Something is not as it should be, though not so that clients should go elsewhere; None: it is again."""
        if reason is None:
            self._degraded.pop(part, None)
        else:
            self._degraded[part] = reason

    def exhausted(self, reason: str | None) -> None:
        """No client of any Service can be served, and has not been for minutes; None: they can be. A restart would cut
        those that are served, so the process stays alive."""
        self._exhausted = reason

    def draining(self) -> None:
        """The process will end as soon as its connections have."""
        self._draining = True

    def at(self, now: float) -> Health:
        """How things stand."""
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
