"""Scales a Deployment that is paused or in the middle of a rollout: every ReplicaSet gets its share."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments.revisions import DESIRED_REPLICAS, MAX_REPLICAS, active, age_key, by_age, integer
from kubeproxy.controllers.deployments.rolling_update import Scale, wanted_pods
from kubeproxy.controllers.surge import max_surge


def is_scaling_event(deployment: Deployment, replica_sets: Sequence[ReplicaSet]) -> bool:
    """Return whether the Deployment's size has changed since an active ReplicaSet was scaled last.

    Several active ReplicaSets of a Recreate Deployment cannot be scaled by their shares. Upstream then waits forever.
    Here the strategy continues, and removes the old ones.
    """
    running = active(replica_sets)
    if not deployment.rolling and len(running) > 1:
        return False
    wanted = (integer(replica_set.metadata.annotations.get(DESIRED_REPLICAS)) for replica_set in running)
    return any(desired is not None and desired != deployment.spec.replicas for desired in wanted)


def is_saturated(deployment: Deployment, replica_set: ReplicaSet | None) -> bool:
    """Return whether a ReplicaSet has all of the Deployment's pods, available."""
    if replica_set is None:
        return False
    replicas = deployment.spec.replicas
    return (
        replica_set.spec.replicas == replicas
        and integer(replica_set.metadata.annotations.get(DESIRED_REPLICAS)) == replicas
        and replica_set.status.available_replicas == replicas
    )


def single_active(new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """Return the one ReplicaSet to be scaled: the active one, or if none is active the new one, or else the newest old
    one. Return None if several are active, or there is none at all."""
    old = by_age(old)
    running = active([*old, *([] if new is None else [new])])
    if len(running) > 1:
        return None
    if running:
        return running[0]
    return new if new is not None else (old[-1] if old else None)


def scale(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> list[Scale]:
    """Return the ReplicaSets to be written, with their sizes. A size may be the present one, because the annotations
    change.

    If several ReplicaSets of a Recreate Deployment are active, none of them is scaled.
    """
    replicas = deployment.spec.replicas
    single = single_active(new, old)
    if single is not None:
        noted = integer(single.metadata.annotations.get(DESIRED_REPLICAS))
        # A ReplicaSet that another client has scaled to this size still has its former size noted. Every later sync
        # would see a scaling event, as upstream's does, and never roll anything out again.
        return [] if single.spec.replicas == replicas and noted in (None, replicas) else [Scale(single, replicas)]
    if is_saturated(deployment, new):
        return [Scale(replica_set, 0) for replica_set in active(by_age(old))]
    if not deployment.rolling:
        return []
    running = active([*old, *([] if new is None else [new])])
    allowed = replicas + max_surge(deployment) if replicas > 0 else 0
    add = allowed - wanted_pods(running)
    ordered = sorted(running, key=age_key, reverse=add > 0)
    ordered.sort(key=lambda replica_set: -replica_set.spec.replicas)
    done, sizes = 0, []
    for replica_set in ordered:
        share = _share(deployment, replica_set, add, done)
        done += share
        sizes.append(replica_set.spec.replicas + share)
    if sizes:
        sizes[0] = max(0, sizes[0] + add - done)
    return [Scale(replica_set, size) for replica_set, size in zip(ordered, sizes, strict=True)]


def _share(deployment: Deployment, replica_set: ReplicaSet, add: int, done: int) -> int:
    """Return the change of one ReplicaSet by its fraction of the Deployment, never more than is left to be added."""
    if add == 0 or add == done:
        return 0
    fraction = _fraction(deployment, replica_set)
    return min(fraction, add - done) if add > 0 else max(fraction, add - done)


def _fraction(deployment: Deployment, replica_set: ReplicaSet) -> int:
    size = replica_set.spec.replicas
    if deployment.spec.replicas == 0:
        return -size
    maximum = integer(replica_set.metadata.annotations.get(MAX_REPLICAS))
    if maximum is None or maximum <= 0:
        maximum = deployment.status.replicas
        if maximum == 0:
            return 0
    return _rounded(size * (deployment.spec.replicas + max_surge(deployment)), maximum) - size


def _rounded(numerator: int, denominator: int) -> int:
    """Round a quotient of positive numbers to the nearest integer, halves up. Python's round would take the even
    one."""
    return (2 * numerator + denominator) // (2 * denominator)
