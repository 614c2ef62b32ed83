"""Decides whether a rollout is complete, makes progress, or has timed out. It is pure; `now` is in Unix seconds."""

from __future__ import annotations

from typing import Final

from kubeproxy.controllers import conditions
from kubeproxy.controllers.api_types import Deployment, DeploymentStatus
from kubeproxy.kubernetes import timestamps

REPLICA_SET_UPDATED: Final = "ReplicaSetUpdated"
FAILED_CREATE: Final = "ReplicaSetCreateError"
NEW_CREATED: Final = "NewReplicaSetCreated"
FOUND_NEW: Final = "FoundNewReplicaSet"
NEW_AVAILABLE: Final = "NewReplicaSetAvailable"
TIMED_OUT: Final = "ProgressDeadlineExceeded"
PAUSED: Final = "DeploymentPaused"
RESUMED: Final = "DeploymentResumed"
MINIMUM_AVAILABLE: Final = "MinimumReplicasAvailable"
MINIMUM_UNAVAILABLE: Final = "MinimumReplicasUnavailable"


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Return whether all pods are new and available, no old pod is left, and the controller has acted on the newest
    spec."""
    wanted = deployment.spec.replicas
    return (
        status.updated_replicas == wanted
        and status.replicas == wanted
        and status.available_replicas == wanted
        and status.observed_generation >= deployment.metadata.generation
    )


def is_progressing(before: DeploymentStatus, status: DeploymentStatus) -> bool:
    """Return whether there are more new, fewer old, more ready, or more available pods than before."""
    old_before = before.replicas - before.updated_replicas
    old_now = status.replicas - status.updated_replicas
    return (
        status.updated_replicas > before.updated_replicas
        or old_now < old_before
        or status.ready_replicas > before.ready_replicas
        or status.available_replicas > before.available_replicas
    )


def is_timed_out(deployment: Deployment, status: DeploymentStatus, now: float) -> bool:
    """Return whether progressDeadlineSeconds have passed without progress. A completed rollout never times out."""
    condition = conditions.find(status.conditions, conditions.PROGRESSING)
    if deployment.deadline_s is None or condition is None or condition.reason == NEW_AVAILABLE:
        return False
    if condition.reason == TIMED_OUT:
        return True
    since = timestamps.parse(condition.last_update_time)
    return since is not None and since + deployment.deadline_s < now


def deadline_in(deployment: Deployment, status: DeploymentStatus, now: float) -> float | None:
    """Return the seconds after which a rollout without progress must be checked for its deadline, or None if no
    deadline is running.

    Return 0 if the deadline is over: the check is then due now, with rate limiting. Otherwise add one second to the
    time that is left, so that the deadline is over at the check.
    """
    condition = conditions.find(status.conditions, conditions.PROGRESSING)
    if deployment.deadline_s is None or condition is None:
        return None
    if is_complete(deployment, status) or condition.reason == TIMED_OUT:
        return None
    since = timestamps.parse(condition.last_update_time)
    if since is None:
        return None
    left = since + deployment.deadline_s - now
    return 0.0 if left < 1 else left + 1
