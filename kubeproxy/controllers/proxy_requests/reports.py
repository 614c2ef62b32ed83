"""Reads the node proxies' drain reports, and finds in them the state of pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeproxy.controllers.api_types import Lease
from kubeproxy.kubernetes import timestamps
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain_report import (
    LEASE_S,
    LEAVING,
    NODE,
    REPORT,
    NodeReport,
    ServiceReport,
    decode_report,
    lease_name,
)
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want

_USES = (Want.USE, Want.READY)
NODES_NAMED = 3
"""The largest number of nodes that a text names. It counts the rest."""


@dataclass(frozen=True, slots=True)
class PodDrain:
    """What the proxies of all live nodes report about one pod."""

    waiting: frozenset[str] = frozenset()
    """The nodes that have not carried out the request."""
    connections: int = 0
    """The number of open connections to the pod, on all nodes."""
    busy: frozenset[str] = frozenset()
    """The nodes with open connections to the pod."""
    kept: frozenset[str] = frozenset()
    """The nodes that still send the pod new connections, because they have no other endpoint."""
    omitted: frozenset[str] = frozenset()
    """The nodes of `waiting` whose reports lack the namespace, because they have no room for all its Services."""
    since: float | None = None
    """When the request was made, in Unix seconds, or None if there is no request about the pod."""

    @property
    def done(self) -> bool:
        """Return whether every node has carried out the request, and no connection is open."""
        return not self.waiting and not self.connections


NOTHING = PodDrain()


@dataclass(frozen=True, slots=True)
class Reports:
    """The drain reports of the live nodes."""

    nodes: Mapping[str, NodeReport]
    """The reports by node, of nodes whose proxies take part in rollouts. It may be empty."""
    leaving: Mapping[str, NodeReport] = field(default_factory=dict)
    """The reports of proxies that a newer instance on the same node has replaced, by node. Only their connections
    count."""

    def state(
        self,
        pod: str,
        owner: str,
        services: Mapping[ServiceName, DrainRequests],
        *,
        local: Collection[ServiceName] = (),
        node: str = "",
    ) -> PodDrain:
        """Return the state of a pod according to all reports about the owner's requests. For the Services `local`, only
        the report of the pod's `node` counts."""
        asked = [
            (name, request)
            for name, requests in services.items()
            for request in requests.requests
            if request.owner == owner and request.pod == pod
        ]
        if not asked:
            return NOTHING
        waiting, kept, omitted = set(), set(), set()
        for of_node, report in self.nodes.items():
            for name, request in asked:
                if of_node != node and name in local:
                    continue
                of_service = report.services.get(name, ServiceReport())
                if not _follows(of_service, request):
                    waiting.add(of_node)
                    if name not in report.services and name.namespace in report.omitted:
                        omitted.add(of_node)
                if not of_service.kept.isdisjoint(request.addresses):
                    kept.add(of_node)
        open_on = self._open_on([(name, it.addresses) for name, it in asked if it.want not in _USES])
        return PodDrain(
            waiting=frozenset(waiting),
            connections=sum(open_on.values()),
            busy=frozenset(open_on),
            kept=frozenset(kept),
            omitted=frozenset(omitted),
            since=max(request.since for _, request in asked) / 1000,
        )

    def connections(self, endpoints: Iterable[tuple[ServiceName, Collection[Address]]]) -> int:
        """Return the number of open connections to these addresses of Services, on all nodes together."""
        return sum(self._open_on(list(endpoints)).values())

    def _open_on(self, endpoints: Sequence[tuple[ServiceName, Collection[Address]]]) -> dict[str, int]:
        """Return the number of open connections by node, without zeros. Each address of a node is counted once, because
        every Service with the address reports all connections to it."""
        found: Counter[str] = Counter()
        for node, report in (*self.nodes.items(), *self.leaving.items()):
            counts: dict[Address, int] = {}
            for service, addresses in endpoints:
                open_ = report.services.get(service, ServiceReport()).open
                counts.update((address, max(counts.get(address, 0), open_.get(address, 0))) for address in addresses)
            found[node] += sum(counts.values())
        return dict(+found)


def _follows(report: ServiceReport, request: DrainRequest) -> bool:
    if report.generation < request.since:
        return False
    return request.want not in _USES or report.unused.isdisjoint(request.addresses)


def live_reports(leases: Iterable[Lease], now: float) -> Reports:
    """Return the reports that have not expired at `now`, in Unix seconds. A report that cannot be decoded counts as
    empty."""
    return reports_of([(lease, report_of(lease)) for lease in leases if is_live(lease, now)])


def reports_of(live: Iterable[tuple[Lease, NodeReport]]) -> Reports:
    """Return the reports of live Leases as `Reports`."""
    found: dict[bool, dict[str, NodeReport]] = {False: {}, True: {}}
    for lease, report in live:
        found[lease.metadata.labels.get(REPORT) == LEAVING][lease.spec.holder_identity] = report
    return Reports(found[False], found[True])


def is_live(lease: Lease, now: float) -> bool:
    """Return whether a Lease has the report of a node, and has not expired.

    The Lease must be owned by the Node object, so that the garbage collector deletes it with the Node. Otherwise
    rollouts would wait for removed nodes. A Lease with a longer duration than proxies write expires after the duration
    that proxies write.
    """
    node, spec = lease.spec.holder_identity, lease.spec
    role = LEAVING if lease.metadata.labels.get(REPORT) == LEAVING else NODE
    owned = any(owner.kind == "Node" and owner.name == node for owner in lease.metadata.owner_references)
    if not node or not owned or lease.metadata.name != lease_name(node, role):
        return False
    renewed = timestamps.parse(spec.renew_time)
    return renewed is not None and now < renewed + min(spec.lease_duration_seconds, LEASE_S) <= now + 2 * LEASE_S


def report_of(lease: Lease) -> NodeReport:
    """Return the report of a Lease. A report that cannot be decoded is returned as empty."""
    try:
        return decode_report(lease.metadata.annotations.report or "")
    except ValueError:
        return NodeReport()


def changed_namespaces(before: NodeReport, now: NodeReport) -> set[str]:
    """Return the namespaces in which two reports of a node differ."""
    return {
        name.namespace
        for name in before.services.keys() | now.services.keys()
        if before.services.get(name) != now.services.get(name)
    }


def number_and_names(nodes: Collection[str]) -> str:
    """Return a text like ``1 node (node-a)``."""
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} ({named(nodes)})"


def named(nodes: Collection[str]) -> str:
    """Return the names as a text like ``node-a, node-b, node-c and 4 more``."""
    first = sorted(nodes)[:NODES_NAMED]
    more = f" and {len(nodes) - len(first)} more" if len(nodes) > len(first) else ""
    return ", ".join(first) + more
