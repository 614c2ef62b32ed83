"""Chooses the old ReplicaSets to delete by the Deployment's revisionHistoryLimit."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments.revisions import age_key, revision_of


def surplus(deployment: Deployment, old: Sequence[ReplicaSet]) -> list[ReplicaSet]:
    """Return the ReplicaSets to be deleted, lowest revision first.

    If there are N too many, only the N lowest revisions are candidates. A candidate is not deleted if it has or wants
    pods, or if its controller has not observed the newest spec. No higher revision is deleted in place of such a
    candidate.
    """
    limit = deployment.history_limit
    if limit is None:
        return []
    candidates = [replica_set for replica_set in old if replica_set.metadata.deletion_timestamp is None]
    candidates.sort(key=lambda replica_set: (revision_of(replica_set), *age_key(replica_set)))
    return [
        replica_set
        for replica_set in candidates[: max(0, len(candidates) - limit)]
        if replica_set.status.replicas == 0
        and replica_set.spec.replicas == 0
        and replica_set.metadata.generation <= replica_set.status.observed_generation
    ]
