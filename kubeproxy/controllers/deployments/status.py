"""Computes the status of a Deployment. It is pure; `now` is in Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubeproxy.controllers import conditions
from kubeproxy.controllers.api_types import Condition, Deployment, DeploymentStatus, ReplicaSet
from kubeproxy.controllers.deployments import progress
from kubeproxy.controllers.deployments.rolling_update import available_pods, wanted_pods
from kubeproxy.controllers.surge import max_unavailable
from kubeproxy.kubernetes import timestamps


def compute(
    deployment: Deployment, replica_sets: Sequence[ReplicaSet], new: ReplicaSet | None, now: float
) -> DeploymentStatus:
    """Return the status with the sums of the ReplicaSets' counts and a new condition Available. Other conditions do not
    change."""
    available = available_pods(replica_sets)
    terminating = [replica_set.status.terminating_replicas for replica_set in replica_sets]
    counted = [number for number in terminating if number is not None]
    status = DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(replica_set.status.replicas for replica_set in replica_sets),
        updated_replicas=0 if new is None else new.status.replicas,
        ready_replicas=sum(replica_set.status.ready_replicas for replica_set in replica_sets),
        available_replicas=available,
        unavailable_replicas=max(0, wanted_pods(replica_sets) - available),
        terminating_replicas=sum(counted) if counted and len(counted) == len(terminating) else None,
        collision_count=deployment.status.collision_count,
        conditions=deployment.status.conditions,
    )
    if available >= deployment.spec.replicas - max_unavailable(deployment):
        condition = conditions.new(
            conditions.AVAILABLE,
            conditions.TRUE,
            progress.MINIMUM_AVAILABLE,
            "Deployment has minimum availability.",
            now,
        )
    else:
        condition = conditions.new(
            conditions.AVAILABLE,
            conditions.FALSE,
            progress.MINIMUM_UNAVAILABLE,
            "Deployment does not have minimum availability.",
            now,
        )
    return _with(status, conditions.put(status.conditions, condition))


def follow_rollout(
    deployment: Deployment,
    status: DeploymentStatus,
    new: ReplicaSet | None,
    old: Sequence[ReplicaSet],
    now: float,
    *,
    progressed: bool = False,
    waits: bool = False,
) -> DeploymentStatus:
    """Return the status with updated conditions Progressing and ReplicaFailure.

    `progressed` says that there was progress that the counts do not show. `waits` says that the rollout waits for the
    proxies: the progress deadline does not apply, because that wait has a timeout of its own.
    """
    stated = status.conditions
    if deployment.deadline_s is None:
        stated = conditions.without(stated, conditions.PROGRESSING)
    elif not _already_complete(status):
        stated = _progressing(deployment, status, new, now, progressed=progressed, waits=waits)
    failure = _replica_failure(new, old, now)
    if failure is not None:
        stated = conditions.put(stated, failure)
    else:
        stated = conditions.without(stated, conditions.REPLICA_FAILURE)
    return _with(status, stated)


def _already_complete(status: DeploymentStatus) -> bool:
    """Return whether the rollout was already complete. It stays complete until a new rollout begins, even if pods
    fail."""
    current = conditions.find(status.conditions, conditions.PROGRESSING)
    return status.replicas == status.updated_replicas and (
        current is not None and current.reason == progress.NEW_AVAILABLE
    )


def _progressing(
    deployment: Deployment,
    status: DeploymentStatus,
    new: ReplicaSet | None,
    now: float,
    *,
    progressed: bool,
    waits: bool,
) -> list[Condition]:
    named = f'Deployment "{deployment.metadata.name}"' if new is None else f'ReplicaSet "{new.metadata.name}"'
    stated = status.conditions
    if progress.is_complete(deployment, status):
        done = f"{named} has successfully progressed."
        return conditions.put(
            stated, conditions.new(conditions.PROGRESSING, conditions.TRUE, progress.NEW_AVAILABLE, done, now)
        )
    if progressed or progress.is_progressing(deployment.status, status):
        condition = conditions.new(
            conditions.PROGRESSING, conditions.TRUE, progress.REPLICA_SET_UPDATED, f"{named} is progressing.", now
        )
        current = conditions.find(stated, conditions.PROGRESSING)
        if current is not None and current.status == conditions.TRUE:
            condition = msgspec.structs.replace(condition, last_transition_time=current.last_transition_time)
        # Set the condition again even if reason and status are the same, because progress restarts the deadline.
        return [*conditions.without(stated, conditions.PROGRESSING), condition]
    if not waits and progress.is_timed_out(deployment, status, now):
        late = f"{named} has timed out progressing."
        return conditions.put(
            stated, conditions.new(conditions.PROGRESSING, conditions.FALSE, progress.TIMED_OUT, late, now)
        )
    return stated


def _replica_failure(new: ReplicaSet | None, old: Sequence[ReplicaSet], now: float) -> Condition | None:
    """Return the condition ReplicaFailure with the failure of the new ReplicaSet, or else of the first old ReplicaSet
    that has a failure. Return None if none has a failure."""
    for replica_set in ([] if new is None else [new], old):
        for each in replica_set:
            found = conditions.find(each.status.conditions, conditions.REPLICA_FAILURE)
            if found is not None:
                moment = found.last_transition_time or timestamps.seconds(now)
                return msgspec.structs.replace(found, last_update_time=moment, last_transition_time=moment)
    return None


def paused_or_resumed(deployment: Deployment, now: float) -> DeploymentStatus | None:
    """Return the status with the condition that says whether the Deployment is paused, or None if it needs no change.

    The deadline does not run while a Deployment is paused, and starts again when it is resumed.
    """
    if deployment.deadline_s is None:
        return None
    current = conditions.find(deployment.status.conditions, conditions.PROGRESSING)
    reason = None if current is None else current.reason
    if reason == progress.TIMED_OUT:
        return None
    if deployment.spec.paused and reason != progress.PAUSED:
        condition = conditions.new(
            conditions.PROGRESSING, conditions.UNKNOWN, progress.PAUSED, "Deployment is paused", now
        )
    elif not deployment.spec.paused and reason == progress.PAUSED:
        condition = conditions.new(
            conditions.PROGRESSING, conditions.UNKNOWN, progress.RESUMED, "Deployment is resumed", now
        )
    else:
        return None
    return _with(deployment.status, conditions.put(deployment.status.conditions, condition))


def with_condition(status: DeploymentStatus, condition: Condition) -> DeploymentStatus:
    """Return the same status with one condition set."""
    return _with(status, conditions.put(status.conditions, condition))


def _with(status: DeploymentStatus, stated: list[Condition]) -> DeploymentStatus:
    return msgspec.structs.replace(status, conditions=stated)
