"""Creates and deletes the pods of one ReplicaSet, and reports an Event for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kubeproxy.controllers import event_reporter
from kubeproxy.controllers.api_types import Pod, ReplicaSet, template_of
from kubeproxy.controllers.event_reporter import EventReporter, Involved
from kubeproxy.controllers.replicaset_kind import ReplicaSetKind
from kubeproxy.controllers.replicasets.slow_start import slow_start
from kubeproxy.kubernetes.client.errors import ApiError, UnreachableError
from kubeproxy.kubernetes.controller.controller_ref import controller_reference
from kubeproxy.kubernetes.metadata import to_wire
from kubeproxy.kubernetes.object_client import ObjectClient, is_not_found, namespace_terminating, server_text
from kubeproxy.model.errors import ClusterError

_MAX_PREFIX = 253
"""The longest prefix of a pod's generated name."""


def pod_from_template(kind: ReplicaSetKind, replica_set: ReplicaSet) -> dict[str, Any]:
    """Return the JSON of a new pod from the ReplicaSet's template, owned by the ReplicaSet. The server generates the
    pod's name."""
    template = template_of(replica_set.spec.template)
    given = template.get("metadata") or {}
    prefix = f"{replica_set.metadata.name}-"
    metadata = {
        "generateName": prefix if len(prefix) <= _MAX_PREFIX else replica_set.metadata.name,
        "namespace": replica_set.metadata.namespace,
        **{key: given[key] for key in ("labels", "annotations", "finalizers") if given.get(key)},
        "ownerReferences": [to_wire(controller_reference(kind.api_version, kind.kind, replica_set.metadata))],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


@dataclass(frozen=True, slots=True)
class PodRequests:
    """Makes the requests that create and delete pods. `pods` is a client of pods."""

    pods: ObjectClient[Pod]
    sink: EventReporter
    kind: ReplicaSetKind

    async def create(
        self, replica_set: ReplicaSet, number: int, created: Callable[[Pod], None]
    ) -> tuple[int, BaseException | None]:
        """Create `number` pods in growing batches. Return how many were created, and the first error.

        `created` is called with each new pod. If the namespace is being deleted, the server's refusal counts as success
        and is not reported.
        """
        wanted = pod_from_template(self.kind, replica_set)
        if not wanted["metadata"].get("labels"):
            return 0, ClusterError("unable to create pods, no labels")
        body = msgspec.json.encode(wanted)
        involved = self._involved(replica_set)

        async def create_one() -> None:
            try:
                pod = await self.pods.create(replica_set.metadata.namespace, body)
            except ApiError as error:
                if namespace_terminating(error):
                    return
                self._report_failure(involved, event_reporter.FAILED_CREATE, "creating", error)
                raise
            created(pod)
            self.sink.record(involved, "Normal", event_reporter.SUCCESSFUL_CREATE, f"Created pod: {pod.metadata.name}")

        return await slow_start(number, create_one)

    async def delete(
        self, replica_set: ReplicaSet, pods: Sequence[Pod], not_deleted: Callable[[Pod], None]
    ) -> BaseException | None:
        """Delete pods in parallel, and return the first error.

        `not_deleted` is called for each pod that this call has not deleted, so that the caller expects no event for it.
        A pod that no longer exists is among them, but is not an error.
        """
        involved = self._involved(replica_set)

        async def delete_one(pod: Pod) -> None:
            try:
                await self.pods.delete(pod.metadata.namespace, pod.metadata.name, uid=pod.metadata.uid)
            except ApiError as error:
                not_deleted(pod)
                if is_not_found(error) or _another_now(error):
                    return
                self._report_failure(involved, event_reporter.FAILED_DELETE, "deleting", error)
                raise
            self.sink.record(involved, "Normal", event_reporter.SUCCESSFUL_DELETE, f"Deleted pod: {pod.metadata.name}")

        results = await asyncio.gather(*map(delete_one, pods), return_exceptions=True)
        return next((result for result in results if isinstance(result, BaseException)), None)

    def _report_failure(self, involved: Involved, reason: str, action: str, error: ApiError) -> None:
        """Report the server's refusal as an Event. Report nothing if the server is unreachable, because queued Events
        would only use up the object's rate limit."""
        if not isinstance(error, UnreachableError):
            self.sink.record(involved, "Warning", reason, f"Error {action}: {server_text(error)}")

    def _involved(self, replica_set: ReplicaSet) -> Involved:
        return Involved.of(self.kind.api_version, self.kind.kind, replica_set.metadata)


def _another_now(error: ApiError) -> bool:
    """Return whether a deletion failed because another pod now has the name. A webhook may refuse with the same status,
    so the message about the UID is checked."""
    return error.status == 409 and "UID in precondition" in server_text(error)
