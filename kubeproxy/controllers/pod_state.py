"""Decides whether a pod is active, ready or available. It is pure; `now` is in Unix seconds."""

from __future__ import annotations

from kubeproxy.controllers.api_types import Pod, PodCondition
from kubeproxy.kubernetes import timestamps

TERMINAL = ("Succeeded", "Failed")


def is_active(pod: Pod) -> bool:
    """Return whether a pod counts as a replica, because it is neither finished nor being deleted."""
    return pod.status.phase not in TERMINAL and pod.metadata.deletion_timestamp is None


def is_terminating(pod: Pod) -> bool:
    """Return whether a pod is being deleted and may still run."""
    return pod.metadata.deletion_timestamp is not None and pod.status.phase not in TERMINAL


def condition_of(pod: Pod, type: str) -> PodCondition | None:
    """Return the pod's condition of this type, or None if there is none."""
    return next((condition for condition in pod.status.conditions if condition.type == type), None)


def is_ready(pod: Pod) -> bool:
    """Return whether the kubelet reports the pod as ready."""
    condition = condition_of(pod, "Ready")
    return condition is not None and condition.status == "True"


def ready_since(pod: Pod) -> float | None:
    """Return when the pod became ready, in Unix seconds, or None if it is not ready or its condition has no time."""
    condition = condition_of(pod, "Ready")
    if condition is None or condition.status != "True":
        return None
    return timestamps.parse(condition.last_transition_time)


def available_at(pod: Pod, min_ready_s: int) -> float | None:
    """Return the time at which the pod becomes available if it stays ready, in Unix seconds, or None if it is not
    ready."""
    if not is_ready(pod):
        return None
    if min_ready_s == 0:
        return float("-inf")
    since = ready_since(pod)
    return None if since is None else since + min_ready_s


def is_available(pod: Pod, min_ready_s: int, now: float) -> bool:
    """Return whether the pod has been ready for `min_ready_s` seconds."""
    available = available_at(pod, min_ready_s)
    return available is not None and available <= now


def restarts(pod: Pod) -> int:
    """Return the highest restart count of the pod's containers."""
    return max((status.restart_count for status in pod.status.container_statuses), default=0)


def init_restarts(pod: Pod) -> int:
    """Return the highest restart count of the pod's init containers."""
    return max((status.restart_count for status in pod.status.init_container_statuses), default=0)
