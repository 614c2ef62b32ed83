"""Finds, sets and removes conditions in the status of workloads. It is pure; `now` is in Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubeproxy.controllers.api_types import Condition
from kubeproxy.kubernetes import timestamps

PROGRESSING = "Progressing"
AVAILABLE = "Available"
REPLICA_FAILURE = "ReplicaFailure"

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def find(conditions: Sequence[Condition], type: str) -> Condition | None:
    """Return the condition of this type, or None if there is none."""
    return next((condition for condition in conditions if condition.type == type), None)


def new(type: str, status: str, reason: str, message: str, now: float) -> Condition:
    """Return a condition for a Deployment with `now` as its update and transition time."""
    moment = timestamps.seconds(now)
    return Condition(
        type=type,
        status=status,
        last_update_time=moment,
        last_transition_time=moment,
        reason=reason,
        message=message,
    )


def without(conditions: Sequence[Condition], type: str) -> list[Condition]:
    """Return all conditions that are not of this type."""
    return [condition for condition in conditions if condition.type != type]


def put(conditions: Sequence[Condition], condition: Condition) -> list[Condition]:
    """Return the conditions with this condition added or replaced. If status and reason are the same as before, the old
    condition stays with its old message. If only the status is the same, the transition time stays."""
    current = find(conditions, condition.type)
    if current is not None and (current.status, current.reason) == (condition.status, condition.reason):
        return list(conditions)
    if current is not None and current.status == condition.status:
        condition = msgspec.structs.replace(condition, last_transition_time=current.last_transition_time)
    return [*without(conditions, condition.type), condition]
