"""Scales a Deployment that is paused or in the middle of a rollout, in proportion to the sizes of its ReplicaSets."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.controllers.api_types import Deployment, ReplicaSet
from kubeproxy.controllers.deployments.revisions import DESIRED_REPLICAS, MAX_REPLICAS, active, age_key, by_age, integer
from kubeproxy.controllers.deployments.rolling_update import Scale, wanted_pods
from kubeproxy.controllers.surge import max_surge


def is_scaling_event(deployment: Deployment, replica_sets: Sequence[ReplicaSet]) -> bool:
    """Return whether the Deployment's size has changed since an active ReplicaSet was scaled last.

    Return False if a Deployment with the strategy Recreate has several active ReplicaSets, which are never scaled in
    proportion. Upstream then waits forever. Here the rollout continues, and removes the old ReplicaSets.
    """
    running = active(replica_sets)
    if not deployment.rolling and len(running) > 1:
        return False
    wanted = (integer(replica_set.metadata.annotations.get(DESIRED_REPLICAS)) for replica_set in running)
    return any(desired is not None and desired != deployment.spec.replicas for desired in wanted)


def is_saturated(deployment: Deployment, replica_set: ReplicaSet | None) -> bool:
    """Return whether a ReplicaSet has as many pods as the Deployment wants, and all of them are available."""
    if replica_set is None:
        return False
    replicas = deployment.spec.replicas
    return (
        replica_set.spec.replicas == replicas
        and integer(replica_set.metadata.annotations.get(DESIRED_REPLICAS)) == replicas
        and replica_set.status.available_replicas == replicas
    )


def single_active(new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """Return the only active ReplicaSet. If none is active, return the new ReplicaSet, or else the newest old
    ReplicaSet. Return None if several are active, or the Deployment has no ReplicaSet."""
    old = by_age(old)
    running = active([*old, *([] if new is None else [new])])
    if len(running) > 1:
        return None
    if running:
        return running[0]
    return new if new is not None else (old[-1] if old else None)


def scale(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> list[Scale]:
    """Return the ReplicaSets to be written, with their new sizes. A size may be unchanged, if only the annotations have
    to be written.

    If several ReplicaSets of a Recreate Deployment are active, none of them is scaled.
    """
    replicas = deployment.spec.replicas
    single = single_active(new, old)
    if single is not None:
        noted = integer(single.metadata.annotations.get(DESIRED_REPLICAS))
        # If another client has scaled the ReplicaSet to this size, its annotation still has the former size. Without a
        # write, every later sync would see a scaling event, and never roll anything out again. Upstream has this fault.
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
    """Return by how many pods one ReplicaSet changes, in proportion to its size. `add` is the change of all ReplicaSets
    together, of which `done` is already distributed."""
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
    """Round a quotient of positive numbers to the nearest integer, and halves up, unlike Python's `round`."""
    return (2 * numerator + denominator) // (2 * denominator)
