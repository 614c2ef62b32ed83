"""Rolls a Deployment back to an earlier revision: finds the revision's ReplicaSet, and makes the patch of the
Deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kubeproxy.controllers import template
from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments.revisions import ROLLBACK_TO, SKIPPED, integer, revision_of


def requested_revision(deployment: Deployment) -> int | None:
    """Return the revision that the rollback annotation names. 0 means the previous revision. Return None if the
    annotation is absent or not an integer."""
    return integer(deployment.metadata.annotations.get(ROLLBACK_TO))


def previous_revision(replica_sets: Sequence[ReplicaSet]) -> int | None:
    """Return the second highest revision, or None if there is only one."""
    highest = sorted({revision_of(replica_set) for replica_set in replica_sets} - {0}, reverse=True)
    return highest[1] if len(highest) > 1 else None


def find_revision(replica_sets: Sequence[ReplicaSet], revision: int) -> ReplicaSet | None:
    """Return the ReplicaSet of a revision, or None."""
    return next((replica_set for replica_set in replica_sets if revision_of(replica_set) == revision), None)


def same_template(deployment: Deployment, replica_set: ReplicaSet) -> bool:
    """Return whether the ReplicaSet has the Deployment's template, so that a rollback to it would change nothing."""
    return template.equal(deployment.spec.template, replica_set.spec.template)


def annotations_after(deployment: Deployment, replica_set: ReplicaSet) -> dict[str, str]:
    """Return the annotations of the Deployment after the rollback: the ReplicaSet's annotations, and the Deployment's
    own annotations of the kinds that are never copied."""
    kept = {key: value for key, value in deployment.metadata.annotations.items() if key in SKIPPED}
    kept.pop(ROLLBACK_TO, None)
    return {**{key: value for key, value in replica_set.metadata.annotations.items() if key not in SKIPPED}, **kept}


def patch(deployment: Deployment, replica_set: ReplicaSet) -> list[dict[str, Any]]:
    """Return a JSON patch that replaces template and annotations.

    A merge patch would keep fields of the present template that the earlier one does not have.
    """
    return [
        {"op": "replace", "path": "/spec/template", "value": template.without_hash(replica_set.spec.template)},
        {"op": "add", "path": "/metadata/annotations", "value": annotations_after(deployment, replica_set)},
    ]
