"""Reports of the node proxies, and what they say about pods. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeproxy.kubernetes import timestamps
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain import DrainRequest, DrainRequests, Want
from kubeproxy.model.drain_report import LEAVING, REPORT, NodeReport, ServiceReport, decode_report
from kubeproxy.workloads.objects import Lease

NODES_NAMED = 3
"""Nodes that a text names one by one."""


@dataclass(frozen=True, slots=True)
class PodDrain:
    """What the proxies of all live nodes report about one pod."""

    waiting: frozenset[str] = frozenset()
    """Nodes that have not followed."""
    connections: int = 0
    """Open connections to the pod, of all nodes."""
    busy: frozenset[str] = frozenset()
    """Nodes with such connections."""
    kept: frozenset[str] = frozenset()
    """Nodes that go on using the pod, because they have no other endpoint."""
    since: float | None = None
    """Unix seconds at which it was asked for; None: no Service selects the pod, or it was not asked for."""

    @property
    def done(self) -> bool:
        """Whether every node has followed, and no connection is open."""
        return not self.waiting and not self.connections


NOTHING = PodDrain()


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of the live nodes."""

    nodes: Mapping[str, NodeReport]
    """Empty: no proxy takes part in rollouts."""
    leaving: Mapping[str, NodeReport] = field(default_factory=dict)
    """The connections of instances that others have replaced, by node."""

    def state(self, pod: str, owner: str, services: Mapping[ServiceName, DrainRequests]) -> PodDrain:
        """What is reported about the requests of an owner for a pod, over all Services that have some."""
        asked = [
            (name, request)
            for name, requests in services.items()
            for request in requests.requests
            if request.owner == owner and request.pod == pod
        ]
        if not asked:
            return NOTHING
        waiting, kept = set(), set()
        for node, report in self.nodes.items():
            for name, request in asked:
                of_service = report.services.get(name, ServiceReport())
                if not _follows(of_service, request):
                    waiting.add(node)
                if not of_service.kept.isdisjoint(request.addresses):
                    kept.add(node)
        open_on = self._open_on([(name, it.addresses) for name, it in asked if it.want is not Want.USE])
        return PodDrain(
            waiting=frozenset(waiting),
            connections=sum(open_on.values()),
            busy=frozenset(open_on),
            kept=frozenset(kept),
            since=max(request.since for _, request in asked) / 1000,
        )

    def connections(self, endpoints: Iterable[tuple[ServiceName, Collection[Address]]]) -> int:
        """Open connections to these endpoints of Services, of all nodes."""
        return sum(self._open_on(list(endpoints)).values())

    def _open_on(self, endpoints: Sequence[tuple[ServiceName, Collection[Address]]]) -> dict[str, int]:
        """The same by node, without zeros. A node counts by address: each Service that has it reports them all."""
        found: Counter[str] = Counter()
        for node, report in (*self.nodes.items(), *self.leaving.items()):
            counts: dict[Address, int] = {}
            for service, addresses in endpoints:
                open_ = report.services.get(service, ServiceReport()).open
                counts.update((each, max(counts.get(each, 0), open_.get(each, 0))) for each in addresses)
            found[node] += sum(counts.values())
        return dict(+found)


def _follows(report: ServiceReport, request: DrainRequest) -> bool:
    if report.generation < request.since:
        return False
    return request.want is not Want.USE or report.unused.isdisjoint(request.addresses)


def live_reports(leases: Iterable[Lease], now: float) -> Reports:
    """The reports that have not expired; `now` in Unix seconds. An unreadable report is one without contents."""
    return reports_of([(lease, report_of(lease)) for lease in leases if is_live(lease, now)])


def reports_of(live: Iterable[tuple[Lease, NodeReport]]) -> Reports:
    """The reports of Leases that have not expired."""
    found: dict[bool, dict[str, NodeReport]] = {False: {}, True: {}}
    for lease, report in live:
        found[lease.metadata.labels.get(REPORT) == LEAVING][lease.spec.holder_identity] = report
    return Reports(found[False], found[True])


def is_live(lease: Lease, now: float) -> bool:
    """Whether a node's report has not expired."""
    renewed = timestamps.parse(lease.spec.renew_time)
    return (
        bool(lease.spec.holder_identity) and renewed is not None and renewed + lease.spec.lease_duration_seconds > now
    )


def report_of(lease: Lease) -> NodeReport:
    """The report of a Lease; an unreadable one has no contents."""
    try:
        return decode_report(lease.metadata.annotations.report or "")
    except ValueError:
        return NodeReport()


def named(nodes: Collection[str]) -> str:
    """``node-a, node-b, node-c and 4 more``."""
    first = sorted(nodes)[:NODES_NAMED]
    more = f" and {len(nodes) - len(first)} more" if len(nodes) > len(first) else ""
    return ", ".join(first) + more
