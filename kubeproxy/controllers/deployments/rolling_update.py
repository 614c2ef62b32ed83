"""Computes the sizes of the new and old ReplicaSets in each step of a rolling update.

All counts come from the specs and statuses of ReplicaSets, never from the pods themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments.revisions import active, by_age
from kubeproxy.controllers.surge import min_available, new_replica_set_size


@dataclass(frozen=True, slots=True)
class Scale:
    """A ReplicaSet and its next size."""

    replica_set: ReplicaSet
    replicas: int

    @property
    def change(self) -> int:
        """Return by how many pods the ReplicaSet grows. The number is negative if it shrinks."""
        return self.replicas - self.replica_set.spec.replicas


def wanted_pods(replica_sets: Sequence[ReplicaSet]) -> int:
    """Return the sum of the wanted sizes of these ReplicaSets."""
    return sum(replica_set.spec.replicas for replica_set in replica_sets)


def available_pods(replica_sets: Sequence[ReplicaSet]) -> int:
    """Return how many pods of these ReplicaSets are available."""
    return sum(replica_set.status.available_replicas for replica_set in replica_sets)


def scale_new(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> int | None:
    """Return the next size of the new ReplicaSet, or None if it does not change."""
    wanted, current = deployment.spec.replicas, new.spec.replicas
    if current == wanted:
        return None
    if current > wanted:
        return wanted
    size = new_replica_set_size(deployment, wanted_pods([*old, new]), current)
    return None if size == current else size


def max_scale_down(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> int:
    """Return by how many pods all old ReplicaSets together may shrink at most. Pods of the new ReplicaSet that are not
    available yet count as unavailable."""
    not_yet = new.spec.replicas - new.status.available_replicas
    return wanted_pods([*old, new]) - min_available(deployment) - not_yet


def cleanup_unhealthy(old: Sequence[ReplicaSet], budget: int) -> list[Scale] | None:
    """Return the sizes of the old ReplicaSets after unavailable pods are removed from them, oldest ReplicaSet first, at
    most `budget` pods.

    Return None if a ReplicaSet has more available pods than it wants: its status is then older than its spec, and its
    counts cannot be used.
    """
    scales = []
    for replica_set in by_age(old):
        if budget <= 0:
            break
        size, available = replica_set.spec.replicas, replica_set.status.available_replicas
        if size == 0 or size == available:
            continue
        gone = min(budget, size - available)
        if gone < 0:
            return None
        scales.append(Scale(replica_set, size - gone))
        budget -= gone
    return scales


def scale_down_old(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> list[Scale]:
    """Return the sizes of the old ReplicaSets after as many pods are removed as availability allows, oldest ReplicaSet
    first."""
    least = min_available(deployment)
    available = available_pods([*old, *([] if new is None else [new])])
    if available <= least:
        return []
    budget = available - least
    scales = []
    for replica_set in by_age(old):
        if budget <= 0:
            break
        size = replica_set.spec.replicas
        if size == 0:
            continue
        gone = min(size, budget)
        scales.append(Scale(replica_set, size - gone))
        budget -= gone
    return scales


def may_shrink_old(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> int:
    """Return how many unavailable pods `cleanup_unhealthy` may remove, or 0 if no old ReplicaSet may shrink."""
    if not active(list(old)):
        return 0
    return max(0, max_scale_down(deployment, new, old))
