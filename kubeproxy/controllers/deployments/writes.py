"""The requests with which the Deployment controller writes ReplicaSets and the Deployment's status and annotations.

Every patch has the resourceVersion of the object on which the decision was based. If another client has changed the
object meanwhile, the patch fails with a Conflict, and the sync is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubeproxy.controllers import event_reporter, template
from kubeproxy.controllers.api_types import Deployment, DeploymentStatus, ReplicaSet
from kubeproxy.controllers.deployments.revisions import annotations_for_new, scale_annotations
from kubeproxy.controllers.deployments.rolling_update import Scale
from kubeproxy.controllers.event_reporter import EventReporter, EventType, Involved
from kubeproxy.controllers.surge import max_total
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.controller_ref import controller_reference
from kubeproxy.kubernetes.metadata import to_wire
from kubeproxy.kubernetes.object_client import JSON_PATCH, ObjectClient, is_not_found

API_VERSION: Final = "apps/v1"
KIND: Final = "Deployment"
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class DeploymentWrites:
    """Makes the write requests. A method that writes an object returns the server's new version of it."""

    deployments: ObjectClient[Deployment]
    replica_sets: ObjectClient[ReplicaSet]
    sink: EventReporter

    def report(self, deployment: Deployment, type: EventType, reason: str, message: str) -> None:
        """Report an Event about the Deployment."""
        self.sink.record(Involved.of(API_VERSION, KIND, deployment.metadata), type, reason, message)

    async def status(
        self, deployment: Deployment, status: DeploymentStatus, annotations: Mapping[str, str] | None = None
    ) -> Deployment:
        """Write the status together with annotations. The subresource ``status`` accepts both in one request."""
        metadata: dict[str, Any] = {"resourceVersion": deployment.metadata.resource_version}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {"metadata": metadata, "status": to_wire(status)}
        where = deployment.metadata
        return await self.deployments.patch(where.namespace, where.name, body, subresource="status")

    async def annotate(self, deployment: Deployment, annotations: Mapping[str, str | None]) -> Deployment:
        """Set annotations of a Deployment. An annotation with the value None is removed."""
        where = deployment.metadata
        body = {"metadata": {"resourceVersion": where.resource_version, "annotations": dict(annotations)}}
        return await self.deployments.patch(where.namespace, where.name, body)

    async def replace_template(self, deployment: Deployment, patch: Sequence[Mapping[str, Any]]) -> Deployment:
        """Apply a JSON patch to a Deployment. The request fails with a Conflict if the Deployment has changed since it
        was read."""
        where = deployment.metadata
        unchanged = {"op": "add", "path": "/metadata/resourceVersion", "value": where.resource_version}
        return await self.deployments.patch(where.namespace, where.name, [unchanged, *patch], content_type=JSON_PATCH)

    async def create(self, deployment: Deployment, replicas: int, revision: int) -> ReplicaSet:
        """Create the new ReplicaSet."""
        body = new_replica_set(deployment, replicas, revision)
        created = await self.replica_sets.create(deployment.metadata.namespace, body)
        if replicas > 0:
            self._report_scaling(deployment, created.metadata.name, 0, replicas)
        return created

    async def scale(self, deployment: Deployment, scale: Scale) -> ReplicaSet:
        """Set the size of a ReplicaSet, and record the Deployment's size and its largest total in annotations of the
        ReplicaSet. Write nothing if all are unchanged. Return the ReplicaSet as it is then."""
        replica_set = scale.replica_set
        where = replica_set.metadata
        noted = scale_annotations(deployment.spec.replicas, max_total(deployment))
        if scale.change == 0 and noted.items() <= where.annotations.items():
            return replica_set
        body = {
            "metadata": {"resourceVersion": where.resource_version, "annotations": noted},
            "spec": {"replicas": scale.replicas},
        }
        scaled = await self.replica_sets.patch(where.namespace, where.name, body)
        if scale.change:
            self._report_scaling(deployment, where.name, replica_set.spec.replicas, scale.replicas)
        return scaled

    async def refresh(self, deployment: Deployment, replica_set: ReplicaSet, revision: int) -> ReplicaSet:
        """Update the annotations and minReadySeconds of the new ReplicaSet from the Deployment, if they differ."""
        where = replica_set.metadata
        wanted = annotations_for_new(deployment, where.annotations, revision, exists=True)
        least = deployment.spec.min_ready_seconds
        if wanted == where.annotations and replica_set.spec.min_ready_seconds == least:
            return replica_set
        body = {
            "metadata": {"resourceVersion": where.resource_version, "annotations": wanted},
            "spec": {"minReadySeconds": least},
        }
        return await self.replica_sets.patch(where.namespace, where.name, body)

    async def delete(self, replica_set: ReplicaSet) -> None:
        """Delete a ReplicaSet. Do nothing if it no longer exists."""
        where = replica_set.metadata
        try:
            await self.replica_sets.delete(where.namespace, where.name, uid=where.uid)
        except ApiError as error:
            if not is_not_found(error):
                raise

    def _report_scaling(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {name} from {before} to {after}"
        self.report(deployment, "Normal", event_reporter.SCALING, message)


def replica_set_name(deployment: Deployment) -> str:
    """Return the name of the new ReplicaSet, which depends on the Deployment's template and collision count."""
    value = template.template_hash(deployment.spec.template, deployment.status.collision_count)
    return f"{deployment.metadata.name[: _MAX_NAME - 1 - len(value)]}-{value}"


def new_replica_set(deployment: Deployment, replicas: int, revision: int) -> dict[str, Any]:
    """Return the JSON of the new ReplicaSet, with all fields of the Deployment's template."""
    value = template.template_hash(deployment.spec.template, deployment.status.collision_count)
    pods = template.with_hash(deployment.spec.template, value)
    selector = to_wire(deployment.spec.selector)
    selector["matchLabels"] = {**deployment.spec.selector.match_labels, template.HASH_LABEL: value}
    annotations = annotations_for_new(deployment, {}, revision, exists=False)
    annotations |= scale_annotations(deployment.spec.replicas, max_total(deployment))
    return {
        "apiVersion": API_VERSION,
        "kind": "ReplicaSet",
        "metadata": {
            "name": replica_set_name(deployment),
            "namespace": deployment.metadata.namespace,
            "labels": pods["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [to_wire(controller_reference(API_VERSION, KIND, deployment.metadata))],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": pods,
        },
    }
