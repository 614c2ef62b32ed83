"""Computes the status of a ReplicaSet or ReplicationController. It is pure; `now` is in Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kubeproxy.controllers import conditions
from kubeproxy.controllers.api_types import Condition, Pod, ReplicaSet, ReplicaSetStatus
from kubeproxy.controllers.pod_state import available_at, is_available, is_ready
from kubeproxy.controllers.template import labels_of
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.metadata import to_wire
from kubeproxy.kubernetes.object_client import server_text

FAILED_CREATE = "FailedCreate"
FAILED_DELETE = "FailedDelete"


def compute(
    replica_set: ReplicaSet, active: Sequence[Pod], terminating: int | None, failure: BaseException | None, now: float
) -> ReplicaSetStatus:
    """Return the status computed from the active pods before this sync created or deleted any.

    `failure` sets the condition ReplicaFailure, which stays with its first message until creating and deleting succeed
    again.
    """
    before = replica_set.status
    spec = replica_set.spec
    labels = labels_of(spec.template).items()
    stated = before.conditions
    known = conditions.find(stated, conditions.REPLICA_FAILURE)
    if failure is not None and known is None:
        reason = FAILED_CREATE if len(active) < spec.replicas else FAILED_DELETE
        moment = timestamps.seconds(now)
        failed = Condition(
            type=conditions.REPLICA_FAILURE,
            status=conditions.TRUE,
            last_transition_time=moment,
            reason=reason,
            message=server_text(failure),
        )
        stated = [*stated, failed]
    elif failure is None and known is not None:
        stated = conditions.without(stated, conditions.REPLICA_FAILURE)
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(map(is_ready, active)),
        available_replicas=sum(is_available(pod, spec.min_ready_seconds, now) for pod in active),
        terminating_replicas=terminating,
        observed_generation=replica_set.metadata.generation,
        conditions=stated,
    )


def worth_writing(before: ReplicaSetStatus, after: ReplicaSetStatus) -> bool:
    """Return whether the server's status `before` has to be replaced by `after`.

    A missing count of terminating pods in `before` equals 0, because servers before 1.33 drop that field. Otherwise
    every start of the controller would write the status of each ReplicaSet once.
    """
    if before.terminating_replicas is None and after.terminating_replicas == 0:
        after = msgspec.structs.replace(after, terminating_replicas=None)
    return before != after


def next_availability(replica_set: ReplicaSet, active: Sequence[Pod], now: float) -> float | None:
    """Return the seconds until the next ready pod becomes available, or None if there is no such pod."""
    least = replica_set.spec.min_ready_seconds
    moments = (available_at(pod, least) for pod in active)
    future = [moment - now for moment in moments if moment is not None and moment > now]
    return min(future, default=None)


def patch(replica_set: ReplicaSet, status: ReplicaSetStatus) -> dict[str, Any]:
    """Return the merge patch for the subresource ``status``. The request fails with a Conflict if the object has
    changed since it was read."""
    body = to_wire(status)
    if status.terminating_replicas is None:
        del body["terminatingReplicas"]
    return {"metadata": {"resourceVersion": replica_set.metadata.resource_version}, "status": body}
