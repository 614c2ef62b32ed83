"""Keeps the Deployment controller's state about rollouts that wait for node proxies, and marks draining pods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kubeproxy.controllers.api_types import Deployment, Pod
from kubeproxy.controllers.informers import Informers
from kubeproxy.controllers.proxy_requests.node_proxies import SOON_S, FailingWrites, NodeProxies
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.controller import monotonic
from kubeproxy.kubernetes.metadata import key_of
from kubeproxy.kubernetes.object_client import ObjectClient, is_not_found
from kubeproxy.model.drain_request import Want

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
MARK: Final = "kubeproxy/draining"
"""The annotation of a pod that drains. Its value is the deletion cost that the pod had before."""
FIRST: Final = "-2147483648"
"""The lowest deletion cost. A pod with this cost is deleted before all other ready pods."""
REST_S: Final = 60.0
"""How long a rollout does not ask the proxies after the API server has refused the requests."""


class DeploymentDrains:
    """The state of all rollouts that wait for proxies. `clock` returns Unix seconds."""

    def __init__(
        self,
        requests: Client,
        informers: Informers,
        *,
        pods: ObjectClient[Pod],
        clock: Callable[[], float],
        on_reports: Callable[[str, float], None],
    ) -> None:
        """When a report changes, `on_reports` is called with the key of each Deployment that waits for reports, and a
        delay in seconds."""
        self._pods = pods
        self._pod_store = informers.pods.store
        self._on_reports = on_reports
        self._used: dict[str, set[str]] = {}
        """The UIDs of pods that every proxy has used, by the key of the Deployment."""
        self._waiting: set[str] = set()
        self._unknown: set[str] = set()
        self._failing = FailingWrites()
        self._alone_until: dict[str, float] = {}
        """The time until which a Deployment's rollout does not ask the proxies, in monotonic seconds, by the key of the
        Deployment."""
        self.proxies = NodeProxies(requests, informers, clock=clock, on_reports=self._look_again)

    def first_unknown(self, deployment: Deployment) -> bool:
        """Return True at the first call for a Deployment, so that only one Event says that its rollouts continue
        without proxies."""
        key = key_of(deployment)
        first = key not in self._unknown
        self._unknown.add(key)
        return first

    def do_without(self, deployment: Deployment) -> None:
        """Let the Deployment's rollout continue without proxies for `REST_S` seconds, because the requests were
        refused."""
        self._alone_until[key_of(deployment)] = monotonic() + REST_S

    def does_without(self, deployment: Deployment) -> bool:
        """Return whether the Deployment's rollout continues without proxies at present."""
        return monotonic() < self._alone_until.get(key_of(deployment), 0.0)

    def used(self, deployment: Deployment) -> set[str]:
        """Return the set of UIDs of the Deployment's pods that every proxy has used at least once. The caller may add
        to this set."""
        return self._used.setdefault(key_of(deployment), set())

    def wait(self, deployment: Deployment) -> None:
        """Have the Deployment synced whenever reports change, until `forget` is called."""
        self._waiting.add(key_of(deployment))

    async def ask(
        self, deployment: Deployment, uses: Sequence[Pod], drains: Sequence[Pod], withdrawn: Collection[str]
    ) -> None:
        """Write the requests of a Deployment to every Service that selects its pods, if they have changed."""
        wanted = [*((pod, Want.USE) for pod in uses), *((pod, Want.DRAIN) for pod in drains)]
        await self.proxies.ask(deployment.metadata.namespace, owner_of(deployment), wanted, withdrawn)

    def forget(self, key: str) -> None:
        """Forget the rollout of a Deployment, because it is over."""
        self._used.pop(key, None)
        self._waiting.discard(key)

    def gone(self, key: str) -> None:
        """Forget a Deployment that was deleted."""
        self.forget(key)
        self._unknown.discard(key)
        self._alone_until.pop(key, None)

    async def mark(self, pods: Iterable[Pod]) -> None:
        """Mark pods as draining. The value of the mark is the pod's present deletion cost."""
        for pod in pods:
            await self._annotate(pod, {MARK: pod.metadata.annotations.deletion_cost or ""})

    async def release(self, pods: Iterable[Pod]) -> None:
        """Give pods the lowest deletion cost, so that the ReplicaSet controller deletes them next."""
        for pod in pods:
            await self._annotate(pod, {COST: FIRST})

    def is_released(self, pod: Pod) -> bool:
        """Return whether a pod has the lowest deletion cost in the cache from which the ReplicaSet controller chooses
        pods to delete."""
        seen = self._pod_store.get(key_of(pod))
        return seen is not None and seen.metadata.annotations.deletion_cost == FIRST

    async def unmark(self, pods: Iterable[Pod]) -> None:
        """Remove the marks of pods, and restore their deletion costs."""
        for pod in pods:
            await self._annotate(pod, {MARK: None, COST: pod.metadata.annotations.draining or None})

    def _look_again(self, namespaces: Collection[str] | None) -> None:
        """Have the Deployments synced that wait for reports in these namespaces. None means all namespaces."""
        for key in self._waiting:
            if namespaces is None or key.partition("/")[0] in namespaces:
                self._on_reports(key, SOON_S)

    async def _annotate(self, pod: Pod, annotations: dict[str, str | None]) -> None:
        """Change annotations of the pod with exactly this UID. Do nothing if it no longer exists."""
        where = pod.metadata
        about = f"pods of {where.namespace}"
        try:
            await self._pods.patch(
                where.namespace, where.name, {"metadata": {"uid": where.uid, "annotations": annotations}}
            )
        except ApiError as error:
            if not is_not_found(error) and error.status != 409:
                self._failing.refused(about, error)
                raise
        else:
            self._failing.succeeded(about)


def owner_of(deployment: Deployment) -> str:
    """Return the owner that a Deployment's requests name."""
    return f"deployment/{deployment.metadata.name}"
