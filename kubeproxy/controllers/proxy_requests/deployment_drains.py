"""Keeps what the Deployment controller knows of rollouts that ask the node proxies, and marks pods that drain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kubeproxy.controllers.api_types import Deployment, Pod
from kubeproxy.controllers.informers import Informers
from kubeproxy.controllers.proxy_requests.node_proxies import SOON_S, FailingWrites, NodeProxies
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.controller import monotonic
from kubeproxy.kubernetes.metadata import key_of
from kubeproxy.kubernetes.object_client import ObjectClient, Requests, is_not_found
from kubeproxy.model.drain_request import Want

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
MARK: Final = "kubeproxy/draining"
"""The annotation of a pod that drains. Its value is the deletion cost that the pod had before."""
FIRST: Final = "-2147483648"
"""The lowest deletion cost. The pod is deleted before all other ready ones."""
REST_S: Final = 60.0
"""How long a rollout continues without the proxies after they could not be asked."""


class DeploymentDrains:
    """The rollouts of all Deployments that ask the proxies. `clock` returns Unix seconds."""

    def __init__(
        self,
        requests: Requests,
        informers: Informers,
        *,
        pods: ObjectClient[Pod],
        clock: Callable[[], float],
        on_reports: Callable[[str, float], None],
    ) -> None:
        """`on_reports` is called with each Deployment that waits, and a delay, when a report has changed."""
        self._pods = pods
        self._pod_store = informers.pods.store
        self._on_reports = on_reports
        self._used: dict[str, set[str]] = {}
        """The UIDs of pods that every proxy has used, by Deployment."""
        self._waiting: set[str] = set()
        self._unknown: set[str] = set()
        self._failing = FailingWrites()
        self._alone_until: dict[str, float] = {}
        """Until when a Deployment's rollout continues without the proxies, in the loop's time."""
        self.proxies = NodeProxies(requests, informers, clock=clock, on_reports=self._look_again)

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
        await self.proxies.ask(deployment.metadata.namespace, owner_of(deployment), wanted, withdrawn)

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

    def _look_again(self, namespaces: Collection[str] | None) -> None:
        """Sync the Deployments of these namespaces that wait for reports. None stands for all namespaces."""
        for key in self._waiting:
            if namespaces is None or key.partition("/")[0] in namespaces:
                self._on_reports(key, SOON_S)

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
                self._failing.refused(about, error)
                raise
        else:
            self._failing.succeeded(about)


def owner_of(deployment: Deployment) -> str:
    """Return the name by which requests refer to a Deployment."""
    return f"deployment/{deployment.metadata.name}"
