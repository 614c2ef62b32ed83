"""The steps of a rolling update: how far the new ReplicaSet grows and the old ones shrink. Pure.

Counts come from the specs and statuses of ReplicaSets only; pods are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubeproxy.controllers.deployments.revisions import active, by_age
from kubeproxy.controllers.objects import Deployment, ReplicaSet
from kubeproxy.controllers.surge import min_available, new_replica_set_size


@dataclass(frozen=True, slots=True)
class Scale:
    """One ReplicaSet and the size that it is to have."""

    replica_set: ReplicaSet
    replicas: int

    @property
    def change(self) -> int:
        """Pods more (or, negative, fewer) than now."""
        return self.replicas - self.replica_set.spec.replicas


def wanted_pods(replica_sets: Sequence[ReplicaSet]) -> int:
    """Return the sum of the sizes."""
    return sum(replica_set.spec.replicas for replica_set in replica_sets)


def available_pods(replica_sets: Sequence[ReplicaSet]) -> int:
    """Return the sum of the available pods."""
    return sum(replica_set.status.available_replicas for replica_set in replica_sets)


def scale_new(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> int | None:
    """Return the next size of the new ReplicaSet; None when it stays as it is."""
    wanted, current = deployment.spec.replicas, new.spec.replicas
    if current == wanted:
        return None
    if current > wanted:
        return wanted
    size = new_replica_set_size(deployment, wanted_pods([*old, new]), current)
    return None if size == current else size


def max_scale_down(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> int:
    """Pods that old ReplicaSets may lose at most, counting as missing those that the new one does not have yet."""
    not_yet = new.spec.replicas - new.status.available_replicas
    return wanted_pods([*old, new]) - min_available(deployment) - not_yet


def cleanup_unhealthy(old: Sequence[ReplicaSet], budget: int) -> list[Scale] | None:
    """Sizes without the pods that are not available, oldest set first, within the budget.

    None when a status is behind its spec (more available than wanted): then nothing is known for sure.
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
    """Sizes of the old ReplicaSets with as many fewer pods as the available ones allow, oldest set first."""
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
    """Return the budget for unhealthy pods; 0 when the old ReplicaSets stay as they are."""
    if not active(list(old)):
        return 0
    return max(0, max_scale_down(deployment, new, old))
