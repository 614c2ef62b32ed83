"""The controller that creates and deletes pods so that a ReplicaSet or ReplicationController has its number of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any

import structlog

from kubeproxy.controllers.api_types import Pod, ReplicaSet, ReplicaSetStatus
from kubeproxy.controllers.event_reporter import EventReporter
from kubeproxy.controllers.informers import pod_client, replica_set_client
from kubeproxy.controllers.pod_ranking import choose_pods_to_delete
from kubeproxy.controllers.pod_state import is_active, is_ready, is_terminating
from kubeproxy.controllers.replicaset_kind import ReplicaSetKind
from kubeproxy.controllers.replicasets import status as replicaset_status
from kubeproxy.controllers.replicasets.pod_control import PodRequests
from kubeproxy.controllers.replicasets.slow_start import BURST
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.claim import claim
from kubeproxy.kubernetes.controller.controller import Controller, monotonic
from kubeproxy.kubernetes.controller.controller_ref import controller_reference
from kubeproxy.kubernetes.controller.expectations import Expectations
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.informer.store import CONTROLLER, NAMESPACE, ORPHANS
from kubeproxy.kubernetes.metadata import Meta, controller_of, key_of
from kubeproxy.kubernetes.object_client import STRATEGIC, is_not_found

log = structlog.get_logger(__name__)


class ReplicaSetController:
    """Controls the objects of one kind. `clock` returns Unix seconds."""

    def __init__(
        self,
        kind: ReplicaSetKind,
        *,
        requests: Client,
        replica_sets: Informer[ReplicaSet],
        pods: Informer[Pod],
        sink: EventReporter,
        workers: int,
        clock: Callable[[], float] = time,
        burst: int = BURST,
    ) -> None:
        self._kind = kind
        self._replica_sets = MutationCache(replica_sets)
        self._client = replica_set_client(requests, kind, written=self._replica_sets.written)
        self._pod_client = pod_client(requests)
        self._pods = pods.store
        self._pods_include = pods.includes
        self._pod_requests = PodRequests(self._pod_client, sink, kind)
        self._clock = clock
        self._burst = burst
        self._terminating_served = kind.counts_terminating
        self.expectations = Expectations()
        self.controller = Controller(kind.queue, self.sync, workers=workers)
        replica_sets.add_handler(_ReplicaSetHandler(self))
        pods.add_handler(PodHandler(self))
        pods.add_list_handler(self._look_again)

    # Called by the handlers of changes in the caches.

    def enqueue(self, replica_set: ReplicaSet) -> None:
        """Put the ReplicaSet into the work queue."""
        self.controller.enqueue(key_of(replica_set))

    def gone(self, replica_set: ReplicaSet) -> None:
        """Forget a ReplicaSet that was deleted, perhaps with a successor of the same name."""
        self.expectations.forget(key_of(replica_set))
        self.enqueue(replica_set)

    def _look_again(self) -> None:
        """After a new list of all pods, sync every ReplicaSet that still expects created or deleted pods. An expected
        pod that is not in the list was created and deleted while no watch ran."""
        for key in self.expectations.unfulfilled():
            self.controller.enqueue(key)

    def owner_of(self, pod: Pod) -> ReplicaSet | None:
        """Return the ReplicaSet that controls a pod. Return None if the pod has no controller, or its controller is of
        another kind or has another UID."""
        owner = controller_of(pod)
        if owner is None or owner.kind != self._kind.kind:
            return None
        found = self._replica_sets.get(f"{pod.metadata.namespace}/{owner.name}")
        return found if found is not None and found.metadata.uid == owner.uid else None

    def enqueue_matching(self, pod: Pod) -> None:
        """Put every ReplicaSet whose selector matches this pod without controller into the work queue."""
        there = self._replica_sets.indexed(NAMESPACE, pod.metadata.namespace)
        matching = [replica_set for replica_set in there if _selects(replica_set, pod)]
        if len(matching) > 1:
            log.info("several selectors match one pod", pod=key_of(pod), kind=self._kind.kind)
        for replica_set in matching:
            self.enqueue(replica_set)

    # The sync.

    async def sync(self, key: str) -> None:
        """Create or delete pods of one ReplicaSet until it has its number of pods, and write its status."""
        replica_set = self._replica_sets.get(key)
        if replica_set is None:
            self.expectations.forget(key)
            return
        may_manage = self.expectations.satisfied(key, monotonic(), self._pods_include)
        if not may_manage:
            self.controller.enqueue_after(key, self.expectations.expires_in(key, monotonic()))
        selector = replica_set.spec.selector
        try:
            selector.matches({})
        except ValueError as error:
            log.warning("selector is invalid", kind=self._kind.kind, key=key, error=str(error))
            return
        owned = self._pods.indexed(CONTROLLER, replica_set.metadata.uid)
        candidates = [*filter(is_active, owned)]
        if not selector.empty:
            candidates += filter(is_active, self._pods.indexed(ORPHANS, replica_set.metadata.namespace))
        active = await self._claim(replica_set, candidates)
        terminating = sum(is_terminating(pod) and selector.matches(pod.metadata.labels) for pod in owned)
        failure: BaseException | None = None
        if may_manage and replica_set.metadata.deletion_timestamp is None:
            failure = await self._manage(key, replica_set, active)
        now = self._clock()
        counted = terminating if self._terminating_served else replica_set.status.terminating_replicas
        status = replicaset_status.compute(replica_set, active, counted, failure, now)
        await self._write_status(replica_set, status)
        if failure is not None:
            raise failure
        if status.ready_replicas != status.available_replicas:
            wait_s = replicaset_status.next_availability(replica_set, active, now)
            if wait_s is not None:
                self.controller.enqueue_after(key, wait_s)

    async def _claim(self, replica_set: ReplicaSet, candidates: Sequence[Pod]) -> list[Pod]:
        metadata = replica_set.metadata

        async def live() -> Meta:
            return (await self._client.get(metadata.namespace, metadata.name)).metadata

        async def patch(pod: Meta, body: Mapping[str, Any]) -> None:
            await self._pod_client.patch(pod.namespace, pod.name, body, content_type=STRATEGIC)

        reference = controller_reference(self._kind.api_version, self._kind.kind, metadata)
        return await claim(metadata, reference, candidates, replica_set.spec.selector.matches, live=live, patch=patch)

    async def _manage(self, key: str, replica_set: ReplicaSet, active: Sequence[Pod]) -> BaseException | None:
        """Create or delete pods. Return the first error.

        Expectations are set before the requests are sent, so that an event that arrives before the answer is counted.
        """
        surplus = len(active) - replica_set.spec.replicas
        if surplus < 0:
            number = min(-surplus, self._burst)
            self.expectations.expect_creations(key, number, monotonic())
            succeeded, failure = await self._pod_requests.create(
                replica_set, number, lambda pod: self.expectations.created(key, pod.metadata.resource_version)
            )
            self.expectations.creation_observed(key, number - succeeded)
            return failure
        if surplus > 0:
            number = min(surplus, self._burst)
            chosen = choose_pods_to_delete(active, number, related=self._related(replica_set), now=self._clock())
            self.expectations.expect_deletions(key, map(key_of, chosen), monotonic())
            return await self._pod_requests.delete(
                replica_set, chosen, lambda pod: self.expectations.deletion_observed(key, key_of(pod))
            )
        return None

    def _related(self, replica_set: ReplicaSet) -> list[Pod]:
        """Return the active pods of all ReplicaSets with the same owner. The pods of a Deployment are spread over nodes
        together."""
        owner = controller_of(replica_set)
        if owner is None:
            return []
        siblings = self._replica_sets.indexed(CONTROLLER, owner.uid)
        return [
            pod
            for sibling in siblings
            for pod in self._pods.indexed(CONTROLLER, sibling.metadata.uid)
            if is_active(pod)
        ]

    async def _write_status(self, replica_set: ReplicaSet, status: ReplicaSetStatus) -> None:
        """Write the status if it has changed. After a Conflict, read the object from the server and try once more."""
        if not replicaset_status.worth_writing(replica_set.status, status):
            return
        metadata = replica_set.metadata
        for last in (False, True):
            try:
                written = await self._client.patch(
                    metadata.namespace,
                    metadata.name,
                    replicaset_status.patch(replica_set, status),
                    subresource="status",
                )
            except ApiError as error:
                if last or is_not_found(error):
                    raise
                replica_set = await self._client.get(metadata.namespace, metadata.name)
                if replica_set.metadata.uid != metadata.uid:
                    raise
                continue
            if status.terminating_replicas is not None and written.status.terminating_replicas is None:
                self._terminating_served = False  # Servers before 1.33 drop the field.
            return


class _ReplicaSetHandler:
    """Handles changes of the ReplicaSets themselves."""

    def __init__(self, owner: ReplicaSetController) -> None:
        self._owner = owner

    def added(self, item: ReplicaSet) -> None:
        self._owner.enqueue(item)

    def updated(self, old: ReplicaSet, new: ReplicaSet) -> None:
        self._owner.enqueue(new)

    def deleted(self, item: ReplicaSet) -> None:
        self._owner.gone(item)


class PodHandler:
    """Handles changes of pods: counts expected pods, and syncs their ReplicaSets."""

    def __init__(self, owner: ReplicaSetController) -> None:
        self._owner = owner

    def added(self, item: Pod) -> None:
        """Handle a new pod, which a ReplicaSet expects or which has no controller."""
        if item.metadata.deletion_timestamp is not None:
            self.deleted(item)
        elif controller_of(item) is None:
            self._owner.enqueue_matching(item)
        elif (owner := self._owner.owner_of(item)) is not None:
            self._owner.expectations.creation_observed(key_of(owner))
            self._owner.enqueue(owner)

    def updated(self, old: Pod, new: Pod) -> None:
        """Handle a change of a pod's owner, labels or state."""
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        moved = controller_of(old) != controller_of(new)
        relabelled = old.metadata.labels != new.metadata.labels
        if new.metadata.deletion_timestamp is not None:
            self.deleted(new)
            if moved or relabelled:
                self.deleted(old)
            return
        if moved and (before := self._owner.owner_of(old)) is not None:
            # The pod's deletion will be reported for its new owner only.
            self._owner.expectations.deletion_observed(key_of(before), key_of(old))
            self._owner.enqueue(before)
        if controller_of(new) is None:
            if moved or relabelled:
                self._owner.enqueue_matching(new)
        elif (owner := self._owner.owner_of(new)) is not None:
            self._owner.enqueue(owner)
            if not is_ready(old) and is_ready(new) and owner.spec.min_ready_seconds > 0:
                self._owner.controller.enqueue_after(key_of(owner), owner.spec.min_ready_seconds)

    def deleted(self, item: Pod) -> None:
        """Handle a pod that was deleted or is being deleted."""
        if (owner := self._owner.owner_of(item)) is not None:
            self._owner.expectations.deletion_observed(key_of(owner), key_of(item))
            self._owner.enqueue(owner)


def _selects(replica_set: ReplicaSet, pod: Pod) -> bool:
    selector = replica_set.spec.selector
    try:
        return not selector.empty and selector.matches(pod.metadata.labels)
    except ValueError:
        return False  # This is reported when the ReplicaSet itself is synced.
