"""Writes a controller's requests to the node proxies, and watches the proxies' reports.

Services and reports are watched only once a controller needs them. Requests are stored on Services, so a new leader
finds the requests of the former leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kubeproxy.controllers.api_types import Lease, Pod, Service
from kubeproxy.controllers.informers import Informers, service_client
from kubeproxy.controllers.proxy_requests.proxy_drain import request_patch
from kubeproxy.controllers.proxy_requests.reports import (
    PodDrain,
    Reports,
    changed_namespaces,
    is_live,
    report_of,
    reports_of,
)
from kubeproxy.controllers.proxy_requests.requests import Wish, addresses_for, merged, name_of, requests_of, selects
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, UnauthorizedError
from kubeproxy.kubernetes.controller.controller import monotonic
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.informer.store import NAMESPACE
from kubeproxy.kubernetes.metadata import key_of
from kubeproxy.kubernetes.object_client import is_conflict, is_not_found, server_text
from kubeproxy.model.drain_report import NodeReport
from kubeproxy.model.drain_request import Want
from kubeproxy.model.errors import ClusterError

PATIENCE_S: Final = 30.0
"""How long a controller waits for the first list of Services and reports. It also retries a failed write of requests
for this time."""
_REFUSALS: Final = frozenset({400, 403, 413, 422})
"""HTTP statuses of errors that a retry cannot mend: a right is missing, a webhook refuses, or a Service has too many
annotations."""
SOON_S: Final = 0.25
"""How long further changes of reports are awaited before the objects that wait for reports are synced."""


class NotAskedError(ClusterError):
    """Raised if requests to the proxies cannot be written. The controller then continues without the proxies."""


class FailingWrites:
    """Decides whether a failed write can still succeed."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """The time of the first failure of each kind of write, in monotonic seconds."""

    def succeeded(self, about: str) -> None:
        """Note that a write has succeeded."""
        self._since.pop(about, None)

    def refused(self, about: str, error: ApiError) -> None:
        """Raise `NotAskedError` if a failed write can never succeed, or this kind of write has failed for longer than
        `PATIENCE_S`."""
        if error.status is None or isinstance(error, UnauthorizedError) or is_conflict(error):
            return
        since = self._since.setdefault(about, monotonic())
        if error.status in _REFUSALS or monotonic() - since >= PATIENCE_S:
            del self._since[about]
            raise NotAskedError(f"the proxies cannot be asked: {server_text(error)}") from error


class NodeProxies:
    """The node proxies as one controller sees them: their Services, their reports, and the controller's requests.
    `clock` returns Unix seconds."""

    def __init__(
        self,
        requests: Client,
        informers: Informers,
        *,
        clock: Callable[[], float],
        on_reports: Callable[[Collection[str] | None], None],
    ) -> None:
        """When a report changes, `on_reports` is called with the namespaces of the changed Services. None means all
        namespaces."""
        self._services = MutationCache(informers.services)
        self._client = service_client(requests, written=self._services.written)
        self._clock = clock
        self._on_reports = on_reports
        self._synced = (informers.services.synced, informers.leases.synced)
        self._leases: dict[str, tuple[Lease, NodeReport]] = {}
        self._asked: dict[str, None] = {}
        """The keys of Services that have requests of any owner."""
        self._since: float | None = None
        """When the proxies were first needed, in monotonic seconds."""
        self._failing = FailingWrites()
        self.wanted = informers.proxies_wanted
        informers.services.add_handler(_ServiceHandler(self._asked))
        informers.leases.add_handler(_LeaseHandler(self))

    @property
    def ready(self) -> bool:
        """Return whether Services and reports have been listed."""
        return all(event.is_set() for event in self._synced)

    def expect(self) -> bool:
        """Begin to watch Services and reports. Return True while the caller should wait for the first list: it is not
        complete, and `PATIENCE_S` is not over."""
        self.wanted.set()
        if self._since is None:
            self._since = monotonic()
        return not self.ready and monotonic() - self._since < PATIENCE_S

    def reports(self) -> Reports:
        """Return the reports of the live nodes."""
        now = self._clock()
        return reports_of([lease for lease in self._leases.values() if is_live(lease[0], now)])

    def exposures(self, namespace: str) -> Callable[[Pod], bool]:
        """Return a function that tells whether a pod of the namespace is selected by a Service, and has an address of
        its own."""
        find = self.finder(namespace)
        return lambda pod: any(addresses_for(service, pod) for service in find(pod))

    def finder(self, namespace: str) -> Callable[[Pod], list[Service]]:
        """Return a function that finds the Services by which proxies send connections to a pod of the namespace. The
        function keeps its results by the pods' labels, because a namespace may have a thousand Services."""
        services = self._services.indexed(NAMESPACE, namespace)
        known: dict[tuple[tuple[str, str], ...], list[Service]] = {}

        def find(pod: Pod) -> list[Service]:
            labels = tuple(sorted(pod.metadata.labels.items()))
            if labels not in known:
                known[labels] = [service for service in services if selects(service, pod)]
            return known[labels]

        return find

    def states(self, namespace: str, owner: str, reports: Reports) -> dict[str, PodDrain]:
        """Return what the nodes report about an owner's requests in a namespace, by pod name."""
        requests = {name_of(service): requests_of(service) for service in self.asked_in(namespace)}
        pods = {request.pod for found in requests.values() for request in found.requests if request.owner == owner}
        return {pod: reports.state(pod, owner, requests) for pod in pods}

    async def ask(
        self, namespace: str, owner: str, wanted: Iterable[tuple[Pod, Want]], withdrawn: Collection[str] = ()
    ) -> None:
        """Write an owner's requests to every Service that selects its pods, if they have changed."""
        find = self.finder(namespace)
        wishes: dict[str, list[Wish]] = {key_of(service): [] for service in self.asked_in(namespace)}
        for pod, want in wanted:
            for service in find(pod):
                if addresses := addresses_for(service, pod):
                    wish = Wish(pod.metadata.name, pod.metadata.uid, addresses, want)
                    wishes.setdefault(key_of(service), []).append(wish)
        for key, of_service in wishes.items():
            await self.write(key, owner, of_service, withdrawn)

    async def tidy(self, namespace: str, owner: str) -> float | None:
        """Remove an owner's expired requests. Return the earliest expiry of its other requests, in Unix seconds, or
        None."""
        later: list[float] = []
        for service in self.asked_in(namespace):
            own = [request for request in requests_of(service).requests if request.owner == owner]
            ends_at = max((each.until for each in own), default=None)
            if ends_at is None:
                continue
            if ends_at > self._clock():
                later.append(ends_at)
            else:
                await self.write(key_of(service), owner, [], ())
        return min(later, default=None)

    def asked_in(self, namespace: str) -> list[Service]:
        """Return the Services of a namespace that have requests."""
        prefix = f"{namespace}/"
        found = (self._services.get(key) for key in self._asked if key.startswith(prefix))
        return [service for service in found if service is not None]

    async def write(self, key: str, owner: str, wishes: Sequence[Wish], withdrawn: Collection[str]) -> None:
        """Write an owner's requests to a Service, if they have changed. Raise `NotAskedError` if the write can never
        succeed."""
        service = self._services.get(key)
        if service is None:
            return
        current = requests_of(service)
        try:
            found = merged(current, owner, wishes, withdrawn=withdrawn, now=self._clock())
        except ValueError as error:  # These are more requests than one Service has room for.
            raise NotAskedError(f"the proxies cannot be asked: {error}") from None
        if found is current:
            return
        where, about = service.metadata, f"service {key}"
        try:
            await self._client.patch(where.namespace, where.name, request_patch(service, found))
        except ApiError as error:
            if not is_not_found(error):
                self._failing.refused(about, error)
                raise
        else:
            self._asked[key] = None
            self._failing.succeeded(about)

    def put_report(self, lease: Lease) -> None:
        """Store a node's report."""
        key, report = key_of(lease), report_of(lease)
        _, before = self._leases.get(key, (lease, None))
        self._leases[key] = lease, report
        self._on_reports(None if before is None else changed_namespaces(before, report))

    def drop_report(self, lease: Lease) -> None:
        """Drop the report of a node whose Lease is gone."""
        self._leases.pop(key_of(lease), None)
        self._on_reports(None)


class _ServiceHandler:
    """Keeps track of the Services that have requests."""

    def __init__(self, asked: dict[str, None]) -> None:
        self._asked = asked

    def added(self, item: Service) -> None:
        if item.metadata.annotations.drain_requests:
            self._asked[key_of(item)] = None
        else:
            self._asked.pop(key_of(item), None)

    def updated(self, old: Service, new: Service) -> None:
        self.added(new)

    def deleted(self, item: Service) -> None:
        self._asked.pop(key_of(item), None)


class _LeaseHandler:
    """Decodes a report when its Lease changes."""

    def __init__(self, owner: NodeProxies) -> None:
        self._owner = owner

    def added(self, item: Lease) -> None:
        self._owner.put_report(item)

    def updated(self, old: Lease, new: Lease) -> None:
        self._owner.put_report(new)

    def deleted(self, item: Lease) -> None:
        self._owner.drop_report(item)
