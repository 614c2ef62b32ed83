"""The node proxies as the Deployment controller sees them: Services, reports, and the requests that the controller
writes.

None of these is watched before a Deployment opts in. Requests are written to Services and marks to pods, so a new
leader continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import structlog

from kubeproxy.controllers.api_types import Deployment, Lease, Pod, Service
from kubeproxy.controllers.drains.proxy_drain import request_patch
from kubeproxy.controllers.drains.reports import PodDrain, Reports, changed_namespaces, is_live, report_of, reports_of
from kubeproxy.controllers.drains.requests import Wish, addresses_for, merged, name_of, requests_of, selects
from kubeproxy.controllers.informers import service_client
from kubeproxy.kubernetes.client.errors import ApiError, Unauthorized
from kubeproxy.kubernetes.controller.controller import monotonic
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.informer.store import NAMESPACE, Store
from kubeproxy.kubernetes.metadata import key_of
from kubeproxy.kubernetes.object_client import ObjectClient, Requests, is_conflict, is_not_found, server_text
from kubeproxy.model.drain_report import NodeReport
from kubeproxy.model.drain_request import Want
from kubeproxy.model.errors import ClusterError

log = structlog.get_logger(__name__)

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
MARK: Final = "kubeproxy/draining"
"""The annotation of a pod that drains. Its value is the deletion cost that the pod had before."""
FIRST: Final = "-2147483648"
"""The lowest deletion cost. The pod is deleted before all other ready ones."""
PATIENCE_S: Final = 30.0
"""How long a Deployment that has opted in waits for the first list of Services and reports. It also waits that long for
a server that fails when the proxies are to be asked."""
REST_S: Final = 60.0
"""How long a rollout continues without the proxies after they could not be asked."""
_REFUSALS: Final = frozenset({400, 403, 413, 422})
"""Answers that the same request gets every time, as when a right is missing, a webhook refuses, or a Service has too
many annotations."""
SOON_S: Final = 0.25
"""How long reports are collected before a waiting Deployment is synced again."""


class NotAskedError(ClusterError):
    """Raised if the API server refuses the requests to the proxies, so that the rollout continues without them."""


class DeploymentDrains:
    """Services and reports, and the requests of all Deployments. `clock` returns Unix seconds."""

    def __init__(
        self,
        requests: Requests,
        *,
        services: Informer[Service],
        leases: Informer[Lease],
        pods: ObjectClient[Pod],
        pod_store: Store[Pod],
        clock: Callable[[], float],
        on_reports: Callable[[str, float], None] = lambda key, delay_s: None,
    ) -> None:
        """`on_reports` is called with each Deployment that waits, and a delay, when a report has changed."""
        self._services = MutationCache(services)
        self._client = service_client(requests, written=self._services.written)
        self._pods = pods
        self._pod_store = pod_store
        self._clock = clock
        self._on_reports = on_reports
        self._synced = (services.synced, leases.synced)
        self._leases: dict[str, tuple[Lease, NodeReport]] = {}
        self._asked: dict[str, None] = {}
        """The Services with requests of any rollout."""
        self._used: dict[str, set[str]] = {}
        """The UIDs of pods that every proxy has used, by Deployment."""
        self._waiting: set[str] = set()
        self._unknown: set[str] = set()
        self._since: float | None = None
        """When the first Deployment opted in, in the loop's time, as in the two attributes below."""
        self._failing: dict[str, float] = {}
        """Since when each kind of write has failed."""
        self._alone_until: dict[str, float] = {}
        """Until when a Deployment's rollout continues without the proxies."""
        self.wanted = asyncio.Event()
        """Set when a Deployment has opted in. From then on Services and reports are watched."""
        services.add_handler(_ServiceHandler(self._asked))
        leases.add_handler(_LeaseHandler(self))

    @property
    def ready(self) -> bool:
        """Return whether Services and reports are known."""
        return all(event.is_set() for event in self._synced)

    def expect(self) -> bool:
        """Begin to watch. Return whether it is still worth waiting for the first list."""
        self.wanted.set()
        if self._since is None:
            self._since = monotonic()
        return not self.ready and monotonic() - self._since < PATIENCE_S

    def first_unknown(self, deployment: Deployment) -> bool:
        """Return whether this is the first time at which a Deployment's rollout has to continue without proxies, so
        that it is to be reported."""
        key = key_of(deployment)
        first = key not in self._unknown
        self._unknown.add(key)
        return first

    def do_without(self, deployment: Deployment) -> None:
        """Leave the proxies alone for a while, because they could not be asked."""
        self._alone_until[key_of(deployment)] = monotonic() + REST_S

    def does_without(self, deployment: Deployment) -> bool:
        """Return whether the proxies are left alone for now."""
        return monotonic() < self._alone_until.get(key_of(deployment), 0.0)

    def reports(self) -> Reports:
        """Return the reports of the live nodes."""
        now = self._clock()
        return reports_of([lease for lease in self._leases.values() if is_live(lease[0], now)])

    def exposed(self, pod: Pod) -> bool:
        """Return whether a Service selects a pod, and proxies can distinguish the pod from others."""
        return any(True for _ in self._selecting(pod))

    def states(self, deployment: Deployment, reports: Reports) -> dict[str, PodDrain]:
        """Return what nodes report about the pods that a Deployment asks about."""
        owner = owner_of(deployment)
        asked = self._asked_in(deployment.metadata.namespace)
        requests = {name_of(service): requests_of(service) for service in asked}
        pods = {request.pod for found in requests.values() for request in found.requests if request.owner == owner}
        return {pod: reports.state(pod, owner, requests) for pod in pods}

    def used(self, deployment: Deployment) -> set[str]:
        """Return the UIDs of pods that every proxy has used at least once. The caller may add to this set."""
        return self._used.setdefault(key_of(deployment), set())

    def wait(self, deployment: Deployment) -> None:
        """Sync a Deployment when reports change, until its rollout is over."""
        self._waiting.add(key_of(deployment))

    async def ask(
        self, deployment: Deployment, uses: Sequence[Pod], drains: Sequence[Pod], withdrawn: Collection[str]
    ) -> None:
        """Bring the requests of a Deployment up to date on every Service of its pods."""
        wanted = [*((pod, Want.USE) for pod in uses), *((pod, Want.DRAIN) for pod in drains)]
        wishes: dict[str, list[Wish]] = {}
        for pod, want in wanted:
            for service in self._selecting(pod):
                wish = Wish(pod.metadata.name, pod.metadata.uid, addresses_for(service, pod), want)
                wishes.setdefault(key_of(service), []).append(wish)
        for service in self._asked_in(deployment.metadata.namespace):
            wishes.setdefault(key_of(service), [])
        for key, of_service in wishes.items():
            service_now = self._services.get(key)
            if service_now is not None:
                await self._write(service_now, owner_of(deployment), of_service, withdrawn)

    async def tidy(self, namespace: str, owner: str) -> float | None:
        """Remove expired requests. Return when to call this again, in Unix seconds, for requests that have not expired
        yet."""
        later: list[float] = []
        for service in self._asked_in(namespace):
            own = [request for request in requests_of(service).requests if request.owner == owner]
            ends_at = max((each.until for each in own), default=None)
            if ends_at is None:
                continue
            if ends_at > self._clock():
                later.append(ends_at)
            else:
                await self._write(service, owner, [], ())
        return min(later, default=None)

    def forget(self, key: str) -> None:
        """Forget a Deployment whose rollout is over."""
        self._used.pop(key, None)
        self._waiting.discard(key)

    def gone(self, key: str) -> None:
        """Forget a Deployment that is gone."""
        self.forget(key)
        self._unknown.discard(key)
        self._alone_until.pop(key, None)

    async def mark(self, pods: Iterable[Pod]) -> None:
        """Mark pods as draining. The mark keeps the deletion cost that the pod has now."""
        for pod in pods:
            await self._annotate(pod, {MARK: pod.metadata.annotations.deletion_cost or ""})

    async def release(self, pods: Iterable[Pod]) -> None:
        """Let these pods be the next to be deleted."""
        for pod in pods:
            await self._annotate(pod, {COST: FIRST})

    def is_released(self, pod: Pod) -> bool:
        """Return whether a pod is released in the cache from which the ReplicaSet controller chooses pods to delete."""
        seen = self._pod_store.get(key_of(pod))
        return seen is not None and seen.metadata.annotations.deletion_cost == FIRST

    async def unmark(self, pods: Iterable[Pod]) -> None:
        """Remove the marks."""
        for pod in pods:
            await self._annotate(pod, {MARK: None, COST: pod.metadata.annotations.draining or None})

    def put_report(self, lease: Lease) -> None:
        """Store a node's report, and sync the Deployments for which it has something new."""
        key, report = key_of(lease), report_of(lease)
        _, before = self._leases.get(key, (lease, None))
        self._leases[key] = lease, report
        self._look_again(None if before is None else changed_namespaces(before, report))

    def drop_report(self, lease: Lease) -> None:
        """Drop the report of a node whose Lease is gone."""
        self._leases.pop(key_of(lease), None)
        self._look_again(None)

    def _look_again(self, namespaces: Collection[str] | None) -> None:
        """Sync the Deployments of these namespaces that wait for reports. None stands for all namespaces."""
        for key in self._waiting:
            if namespaces is None or key.partition("/")[0] in namespaces:
                self._on_reports(key, SOON_S)

    def _selecting(self, pod: Pod) -> Iterable[Service]:
        return (
            service
            for service in self._services.indexed(NAMESPACE, pod.metadata.namespace)
            if selects(service, pod) and addresses_for(service, pod)
        )

    def _asked_in(self, namespace: str) -> list[Service]:
        """Return the Services of a namespace that have requests."""
        prefix = f"{namespace}/"
        found = (self._services.get(key) for key in self._asked if key.startswith(prefix))
        return [service for service in found if service is not None]

    async def _write(self, service: Service, owner: str, wishes: Sequence[Wish], withdrawn: Collection[str]) -> None:
        current = requests_of(service)
        try:
            found = merged(current, owner, wishes, withdrawn=withdrawn, now=self._clock())
        except ValueError as error:  # These are more requests than one Service has room for.
            raise NotAskedError(f"the proxies cannot be asked: {error}") from None
        if found is current:
            return
        where = service.metadata
        about = f"service {key_of(service)}"
        try:
            await self._client.patch(where.namespace, where.name, request_patch(service, found))
        except ApiError as error:
            if not is_not_found(error):
                self._refused(about, error)
                raise
        else:
            self._asked[key_of(service)] = None
            self._failing.pop(about, None)

    async def _annotate(self, pod: Pod, annotations: dict[str, str | None]) -> None:
        """Change annotations of exactly this pod. A pod that is gone needs none."""
        where = pod.metadata
        about = f"pods of {where.namespace}"
        try:
            await self._pods.patch(
                where.namespace, where.name, {"metadata": {"uid": where.uid, "annotations": annotations}}
            )
        except ApiError as error:
            if not is_not_found(error) and error.status != 409:
                self._refused(about, error)
                raise
        else:
            self._failing.pop(about, None)

    def _refused(self, about: str, error: ApiError) -> None:
        """Raise `NotAskedError` if a write can never succeed, or has failed for longer than `PATIENCE_S`."""
        if error.status is None or isinstance(error, Unauthorized) or is_conflict(error):
            return
        since = self._failing.setdefault(about, monotonic())
        if error.status in _REFUSALS or monotonic() - since >= PATIENCE_S:
            del self._failing[about]
            raise NotAskedError(f"the proxies cannot be asked: {server_text(error)}") from error


def owner_of(deployment: Deployment) -> str:
    """Return the name by which requests refer to a Deployment."""
    return owner_named(deployment.metadata.name)


def owner_named(name: str) -> str:
    """Return the name by which requests refer to a Deployment with this name."""
    return f"deployment/{name}"


class _ServiceHandler:
    """Notes the Services that have requests."""

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
    """Decodes each report once."""

    def __init__(self, owner: DeploymentDrains) -> None:
        self._owner = owner

    def added(self, item: Lease) -> None:
        self._owner.put_report(item)

    def updated(self, old: Lease, new: Lease) -> None:
        self._owner.put_report(new)

    def deleted(self, item: Lease) -> None:
        self._owner.drop_report(item)
