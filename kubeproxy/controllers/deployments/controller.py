"""The controller of Deployments: the events that cause a sync, and the objects that a sync reads from the caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from typing import Any

import msgspec
import structlog

from kubeproxy.controllers import event_reporter
from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments.drain_plan import OPT_IN
from kubeproxy.controllers.deployments.drain_sync import LOOK_S
from kubeproxy.controllers.deployments.sync import DeploymentSync, Surroundings
from kubeproxy.controllers.deployments.writes import API_VERSION, KIND, DeploymentWrites
from kubeproxy.controllers.event_reporter import EventReporter
from kubeproxy.controllers.informers import Informers, deployment_client, pod_client, replica_set_client
from kubeproxy.controllers.proxy_requests.deployment_drains import DeploymentDrains
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.controller.claim import claim
from kubeproxy.kubernetes.controller.controller import Controller
from kubeproxy.kubernetes.controller.controller_ref import controller_reference
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.informer.store import CONTROLLER, NAMESPACE, ORPHANS
from kubeproxy.kubernetes.metadata import Meta, OwnerReference, controller_of, key_of
from kubeproxy.kubernetes.object_client import STRATEGIC

log = structlog.get_logger(__name__)

MAX_RETRIES = 15
"""How many times in a row a sync may fail. The Deployment then waits for its next event (upstream's maxRetries)."""


class DeploymentController:
    """Carries out the rollouts of all Deployments. `clock` returns Unix seconds."""

    def __init__(
        self,
        *,
        requests: Client,
        informers: Informers,
        sink: EventReporter,
        workers: int,
        clock: Callable[[], float] = time,
    ) -> None:
        """Register the handlers. The informers `services` and `leases` need not run before `informers.proxies_wanted`
        is set."""
        self._deployments = MutationCache(informers.deployments)
        self._replica_sets = MutationCache(informers.replica_sets)
        self._client = deployment_client(requests, written=self._deployments.written)
        self._replica_set_client = replica_set_client(requests, written=self._replica_sets.written)
        self._writes = DeploymentWrites(self._client, self._replica_set_client, sink)
        self._pods = MutationCache(informers.pods)
        self._clock = clock
        self.drains = DeploymentDrains(
            requests,
            informers,
            pods=pod_client(requests, written=self._pods.written),
            clock=clock,
            on_reports=lambda key, delay_s: self.controller.enqueue_after(key, delay_s),
        )
        self.controller = Controller("deployment", self.sync, workers=workers, max_retries=MAX_RETRIES)
        informers.deployments.add_handler(_DeploymentHandler(self))
        informers.replica_sets.add_handler(_ReplicaSetHandler(self))
        informers.pods.add_handler(_PodHandler(self))

    # Called by the handlers of changes in the caches.

    def enqueue(self, deployment: Deployment) -> None:
        """Put the Deployment into the work queue."""
        self.controller.enqueue(key_of(deployment))

    def owner_of(self, replica_set: ReplicaSet) -> Deployment | None:
        """Return the Deployment that controls a ReplicaSet, or None."""
        return self._resolve(replica_set.metadata.namespace, controller_of(replica_set))

    def enqueue_matching(self, replica_set: ReplicaSet) -> None:
        """Put every Deployment whose selector matches this ReplicaSet without owner into the work queue."""
        for deployment in self._deployments.indexed(NAMESPACE, replica_set.metadata.namespace):
            if _selects(deployment, replica_set):
                self.enqueue(deployment)

    def pod_seen(self, pod: Pod) -> None:
        """If the pod drains, begin to watch drain reports and sync its Deployment. The drain may have begun under an
        earlier leader."""
        if pod.metadata.annotations.draining is None:
            return
        self.drains.proxies.wanted.set()
        deployment = self._deployment_of(pod)
        if deployment is not None and pod.metadata.deletion_timestamp is None:
            self.enqueue(deployment)

    def pod_deleted(self, pod: Pod) -> None:
        """Sync a Deployment with the strategy Recreate when the last pod of one of its ReplicaSets is gone.

        The new ReplicaSet may already have pods, if the strategy was RollingUpdate before. So each ReplicaSet is
        checked by itself.
        """
        deployment, owner = self._deployment_of(pod), controller_of(pod)
        if deployment is None or owner is None or deployment.spec.strategy.type != "Recreate":
            return
        if not self._pods.indexed(CONTROLLER, owner.uid):
            self.enqueue(deployment)

    def _deployment_of(self, pod: Pod) -> Deployment | None:
        """Return the Deployment that controls the pod's ReplicaSet, or None."""
        owner = controller_of(pod)
        if owner is None or owner.kind != "ReplicaSet":
            return None
        replica_set = self._replica_sets.get(f"{pod.metadata.namespace}/{owner.name}")
        if replica_set is None or replica_set.metadata.uid != owner.uid:
            return None
        return self.owner_of(replica_set)

    def _resolve(self, namespace: str, owner: OwnerReference | None) -> Deployment | None:
        if owner is None or owner.kind != KIND:
            return None
        found = self._deployments.get(f"{namespace}/{owner.name}")
        return found if found is not None and found.metadata.uid == owner.uid else None

    # The sync.

    async def sync(self, key: str) -> None:
        """Take the next step of one Deployment."""
        deployment = self._deployments.get(key)
        if deployment is None:
            self.drains.gone(key)
            return
        if _opted_in(deployment) and self.drains.proxies.expect():
            self.controller.enqueue_after(key, LOOK_S)
            return
        if deployment.spec.selector.empty:
            await self._refuse(deployment)
            return
        try:
            deployment.spec.selector.matches({})
        except ValueError as error:
            log.warning("selector is invalid", kind=KIND, key=key, error=str(error))
            return
        owned = await self._claim(deployment)
        surroundings = Surroundings(
            writes=self._writes,
            clock=self._clock,
            pods_of=lambda replica_set: self._pods.indexed(CONTROLLER, replica_set.metadata.uid),
            cached=lambda namespace, name: self._replica_sets.get(f"{namespace}/{name}"),
            enqueue_after=lambda delay_s: self._again(key, delay_s),
            drains=self.drains,
        )
        await DeploymentSync(surroundings, deployment, owned).run()

    async def _refuse(self, deployment: Deployment) -> None:
        """Report that a Deployment has an empty selector, which would match every pod of the namespace."""
        message = "This deployment is selecting all pods. A non-empty selector is required."
        self._writes.report(deployment, "Warning", event_reporter.SELECTING_ALL, message)
        if deployment.status.observed_generation < deployment.metadata.generation:
            observed = msgspec.structs.replace(deployment.status, observed_generation=deployment.metadata.generation)
            await self._writes.status(deployment, observed)

    async def _claim(self, deployment: Deployment) -> list[ReplicaSet]:
        metadata = deployment.metadata

        async def live() -> Meta:
            return (await self._client.get(metadata.namespace, metadata.name)).metadata

        async def patch(replica_set: Meta, body: Mapping[str, Any]) -> None:
            await self._replica_set_client.patch(replica_set.namespace, replica_set.name, body, content_type=STRATEGIC)

        candidates = [
            *self._replica_sets.indexed(CONTROLLER, metadata.uid),
            *self._replica_sets.indexed(ORPHANS, metadata.namespace),
        ]
        reference = controller_reference(API_VERSION, KIND, metadata)
        return await claim(metadata, reference, candidates, deployment.spec.selector.matches, live=live, patch=patch)

    def _again(self, key: str, delay_s: float) -> None:
        if delay_s == 0:
            self.controller.enqueue_rate_limited(key)
        else:
            self.controller.enqueue_after(key, delay_s)


class _DeploymentHandler:
    """Handles changes of Deployments."""

    def __init__(self, owner: DeploymentController) -> None:
        self._owner = owner

    def added(self, item: Deployment) -> None:
        self._owner.enqueue(item)

    def updated(self, old: Deployment, new: Deployment) -> None:
        self._owner.enqueue(new)

    def deleted(self, item: Deployment) -> None:
        self._owner.enqueue(item)


class _ReplicaSetHandler:
    """Handles changes of ReplicaSets. A change syncs the owner. A ReplicaSet without owner syncs every Deployment that
    selects it."""

    def __init__(self, owner: DeploymentController) -> None:
        self._owner = owner

    def added(self, item: ReplicaSet) -> None:
        if item.metadata.deletion_timestamp is not None:
            self.deleted(item)
        elif controller_of(item) is None:
            self._owner.enqueue_matching(item)
        else:
            self._wake(item)

    def updated(self, old: ReplicaSet, new: ReplicaSet) -> None:
        if old.metadata.resource_version == new.metadata.resource_version:
            return
        moved = controller_of(old) != controller_of(new)
        if moved:
            self._wake(old)
        if controller_of(new) is not None:
            self._wake(new)
        elif moved or old.metadata.labels != new.metadata.labels:
            self._owner.enqueue_matching(new)

    def deleted(self, item: ReplicaSet) -> None:
        self._wake(item)

    def _wake(self, replica_set: ReplicaSet) -> None:
        deployment = self._owner.owner_of(replica_set)
        if deployment is not None:
            self._owner.enqueue(deployment)


class _PodHandler:
    """Handles a pod's deletion and the beginning of its drain. Other changes of pods are noticed by the status of the
    ReplicaSet."""

    def __init__(self, owner: DeploymentController) -> None:
        self._owner = owner

    def added(self, item: Pod) -> None:
        self._owner.pod_seen(item)

    def updated(self, old: Pod, new: Pod) -> None:
        self._owner.pod_seen(new)

    def deleted(self, item: Pod) -> None:
        self._owner.pod_deleted(item)


def _opted_in(deployment: Deployment) -> bool:
    return deployment.metadata.annotations.get(OPT_IN) == "true"


def _selects(deployment: Deployment, replica_set: ReplicaSet) -> bool:
    selector = deployment.spec.selector
    try:
        return not selector.empty and selector.matches(replica_set.metadata.labels)
    except ValueError:
        return False  # This is reported when the Deployment itself is synced.
