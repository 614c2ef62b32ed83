"""Describes how far a rollout is: the line of `kubectl rollout status`, and what the rollout waits for. It is pure;
`now` is in Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kubeproxy.controllers import conditions
from kubeproxy.controllers.api_types import ContainerStatus, ContainerTerminated, Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments import progress
from kubeproxy.controllers.pod_state import condition_of, is_available, is_ready, is_terminating
from kubeproxy.controllers.readiness import gates
from kubeproxy.kubernetes import timestamps


class State(StrEnum):
    """The state of a rollout."""

    COMPLETE = "complete"
    PROGRESSING = "progressing"
    PAUSED = "paused"
    TIMED_OUT = "timed out"


class DeadlineExceededError(Exception):
    """Raised if the rollout made no progress within progressDeadlineSeconds."""


def status_line(deployment: Deployment) -> tuple[str, bool]:
    """Return the line that kubectl prints, and whether the rollout is done. Raise `DeadlineExceededError` if the
    rollout timed out."""
    name, status = deployment.metadata.name, deployment.status
    wanted = deployment.spec.replicas
    if deployment.metadata.generation > status.observed_generation:
        return "Waiting for deployment spec update to be observed...", False
    condition = conditions.find(status.conditions, conditions.PROGRESSING)
    if condition is not None and condition.reason == progress.TIMED_OUT:
        raise DeadlineExceededError(f'deployment "{name}" exceeded its progress deadline')
    begin = f'Waiting for deployment "{name}" rollout to finish:'
    if status.updated_replicas < wanted:
        return f"{begin} {status.updated_replicas} out of {wanted} new replicas have been updated...", False
    if status.replicas > status.updated_replicas:
        return f"{begin} {status.replicas - status.updated_replicas} old replicas are pending termination...", False
    if status.available_replicas < status.updated_replicas:
        return (
            f"{begin} {status.available_replicas} of {status.updated_replicas} updated replicas are available...",
            False,
        )
    return f'deployment "{name}" successfully rolled out', True


def state_of(deployment: Deployment) -> State:
    """Return the state of the rollout according to the Deployment's status."""
    condition = conditions.find(deployment.status.conditions, conditions.PROGRESSING)
    if deployment.spec.paused:
        return State.PAUSED
    if progress.is_complete(deployment, deployment.status):
        return State.COMPLETE
    if condition is not None and condition.reason == progress.TIMED_OUT:
        return State.TIMED_OUT
    return State.PROGRESSING


@dataclass(frozen=True, slots=True)
class Waiting:
    """A description of what a rollout waits for."""

    text: str
    since: float | None
    """The beginning of the wait in Unix seconds, or None if it is unknown."""


def waiting_for(
    deployment: Deployment, new: ReplicaSet | None, new_pods: Sequence[Pod], old_pods: Sequence[Pod], now: float
) -> Waiting | None:
    """Return what keeps a rollout from its next step, or None if the rollout is complete."""
    state = state_of(deployment)
    if state is State.COMPLETE:
        return None
    condition = conditions.find(deployment.status.conditions, conditions.PROGRESSING)
    since = None if condition is None else timestamps.parse(condition.last_update_time)
    if state is State.PAUSED:
        return Waiting("it is paused; resume it to go on", since)
    failure = conditions.find(deployment.status.conditions, conditions.REPLICA_FAILURE)
    if failure is not None:
        return Waiting(
            f"pods cannot be created or deleted: {failure.message}", timestamps.parse(failure.last_transition_time)
        )
    if deployment.metadata.generation > deployment.status.observed_generation:
        return Waiting("its newest spec has not been acted on yet", None)
    if new is None:
        refused = condition is not None and condition.reason == progress.FAILED_CREATE
        because = f": {condition.message}" if condition is not None and refused else ""
        return Waiting(f"its new ReplicaSet has not been created yet{because}", since)
    unready = [pod for pod in new_pods if not is_ready(pod) and pod.metadata.deletion_timestamp is None]
    if unready:
        oldest = min(unready, key=lambda pod: pod.metadata.creation_timestamp or "")
        others = f" (and {len(unready) - 1} more)" if len(unready) > 1 else ""
        text = f"pod {oldest.metadata.name} is not ready: {pod_trouble(oldest)}{others}"
        return Waiting(text, timestamps.parse(oldest.metadata.creation_timestamp))
    least = deployment.spec.min_ready_seconds
    early = [pod for pod in new_pods if is_ready(pod) and not is_available(pod, least, now)]
    if early:
        return Waiting(f"{len(early)} ready pods have not been ready for {least} s (minReadySeconds) yet", since)
    ending = [pod for pod in old_pods if is_terminating(pod)]
    if ending:
        return Waiting(f"{len(ending)} old pods are ending", since)
    return Waiting(f"{len(old_pods)} old pods are still to go", since)


def pod_trouble(pod: Pod) -> str:
    """Return why a pod is not ready, from the most specific part of its status."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        trouble = _container_trouble(status)
        if trouble:
            return f"container {status.name} {trouble}"
    if gates.waits(pod):
        return _gate_trouble(pod)
    for type in ("PodScheduled", "Ready"):
        for condition in pod.status.conditions:
            if condition.type == type and condition.status == "False" and condition.reason:
                return _with_message(condition.reason, condition.message)
    if not pod.spec.node_name:
        return "not assigned to a node yet"
    return f"phase {pod.status.phase or 'unknown'}, its containers are not ready"


def _gate_trouble(pod: Pod) -> str:
    condition = condition_of(pod, gates.GATE)
    said = "no controller has answered yet" if condition is None else condition.message
    return f"waits at its readiness gate {gates.GATE}: {said}"


def _container_trouble(status: ContainerStatus) -> str:
    """Return what keeps a container from running, or an empty text if it runs or has finished its work."""
    waiting, ended = status.state.waiting, status.state.terminated
    if waiting is not None and waiting.reason:
        before = status.last_state.terminated
        last = "" if before is None else f"; its last run ended with {_ending(before)}"
        return f"waits, {_with_message(waiting.reason, waiting.message)}{last}"
    if ended is not None and ended.exit_code:
        return f"ended with {_ending(ended)}"
    return ""


def _ending(ended: ContainerTerminated) -> str:
    reason = f" ({ended.reason})" if ended.reason else ""
    return _with_message(f"exit code {ended.exit_code}{reason}", ended.message)


def _with_message(reason: str, message: str) -> str:
    return f"{reason}: {' '.join(message.split())}" if message else reason
