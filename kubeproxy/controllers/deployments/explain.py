"""Explains in one paragraph what a rollout waits for, on which node, why, since when, and how to let the rollout
continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments.explain_proxies import ProxyWait
from kubeproxy.controllers.deployments.rollout_status import State, state_of, waiting_for
from kubeproxy.controllers.pod_state import is_ready

REMEDIES: Final[Mapping[str, str]] = {
    "ImagePullBackOff": "correct the image's name or tag, or the pull secret",
    "ErrImagePull": "correct the image's name or tag, or the pull secret",
    "ErrImageNeverPull": "load the image on the node, or allow it to be pulled (imagePullPolicy)",
    "InvalidImageName": "correct the image's name",
    "OOMKilled": "raise the container's memory limit, or lower what it needs",
    "CrashLoopBackOff": "read the container's log (kubectl logs --previous), then mend the image or its configuration",
    "RunContainerError": "correct the container's command, or what it mounts",
    "CreateContainerConfigError": "create the ConfigMap or Secret that the container refers to",
    "CreateContainerError": "correct the container's command, or what it mounts",
    "FailedMount": "create the ConfigMap, Secret or volume that the pod mounts",
    "FailedAttachVolume": "detach the volume from the other node, or wait until that is done",
    "probe failed": "read the container's log (kubectl logs), then mend the application or its probe",
    "ended with exit code": "read the container's log (kubectl logs), then mend the image or its configuration",
    "Unschedulable": "free resources or add a node, or relax the pod's requests, selectors and tolerations",
    "exceeded quota": "raise the namespace's ResourceQuota, or lower maxSurge to 0",
    "failed calling webhook": "make the webhook's service answer, or remove its configuration",
    "denied the request": "change the pod template as the webhook demands",
    "violates PodSecurity": "change the pod template's securityContext, or the namespace's PodSecurity level",
    "serviceaccount": "create the service account that the pod template names",
    "no controller has answered": "run kubeproxy controller-manager --controllers=readiness, or remove the gate",
    "do not use this pod yet": "read kubeproxy's log and status on these nodes, or lower kubeproxy/use-timeout",
    "is paused": "kubeproxy rollout resume",
    "not acted on": "check that a controller manager runs and is the leader",
}
"""What the user can do so that a rollout continues. A key is a part of the text that says what the rollout waits
for."""


def explain(
    deployment: Deployment,
    new: ReplicaSet | None,
    new_pods: Sequence[Pod],
    old_pods: Sequence[Pod],
    warnings: Mapping[str, str],
    now: float,
    *,
    proxies: ProxyWait | None = None,
) -> str:
    """Return the explanation. `warnings` has the newest Warning Event of each pod, by pod name. `proxies` is the
    rollout's wait for node proxies, if there is one."""
    name = f'Deployment "{deployment.metadata.name}"'
    status, wanted = deployment.status, deployment.spec.replicas
    state = state_of(deployment)
    if state is State.COMPLETE:
        return f"{name} is rolled out: {status.available_replicas} of {wanted} pods are new and available."
    waiting = waiting_for(deployment, new, new_pods, old_pods, now)
    blocked = _blocked(new_pods)
    if proxies is not None and blocked is None and state is State.PROGRESSING:
        waiting = proxies.waiting
    parts = [
        f"{name} is {state}: {status.updated_replicas} of {wanted} pods are new,"
        f" {status.available_replicas} available, {max(0, status.replicas - status.updated_replicas)} old ones left."
    ]
    if waiting is None:
        return parts[0]
    age = "" if waiting.since is None else f" for {duration(now - waiting.since)}"
    parts.append(f"It waits{age}: {waiting.text}.")
    said = "" if blocked is None else warnings.get(blocked.metadata.name, "")
    if blocked is not None and blocked.spec.node_name:
        parts.append(f"The pod is on node {blocked.spec.node_name}.")
    if said:
        parts.append(f"Its last warning: {said}")
    remedy = next((text for key, text in REMEDIES.items() if key in f"{waiting.text} {said}"), "")
    if waiting.text == (proxies.waiting.text if proxies is not None else ""):
        remedy = proxies.remedy if proxies is not None else ""
    if remedy:
        parts.append(f"To go on: {remedy}.")
    if state is State.TIMED_OUT:
        parts.append("To go back: kubeproxy rollout undo.")
    return " ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds with at most two units, such as ``1h5m``."""
    whole = max(0, round(seconds))
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{small}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def _blocked(pods: Sequence[Pod]) -> Pod | None:
    """Return the oldest pod that is not ready, which `waiting_for` names, too. Return None if all pods are ready."""
    unready = [pod for pod in pods if not is_ready(pod) and pod.metadata.deletion_timestamp is None]
    return min(unready, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)
