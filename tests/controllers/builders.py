"""Deployments, ReplicaSets and pods for tests of decisions."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments.revisions import DESIRED_REPLICAS, MAX_REPLICAS, REVISION
from kubeproxy.kubernetes import timestamps

EPOCH = 1_760_000_000.0


def template(image: str = "web:1", **labels: str) -> dict[str, Any]:
    """A pod template."""
    return {"metadata": {"labels": {"app": "web", **labels}}, "spec": {"containers": [{"name": "a", "image": image}]}}


def deployment(
    replicas: int = 10,
    *,
    surge: int | str = 0,
    unavailable: int | str = 0,
    strategy: str = "RollingUpdate",
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    image: str = "web:1",
    generation: int = 1,
    **spec: Any,
) -> Deployment:
    """A Deployment with defaults that a test can replace."""
    rolling = (
        {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}} if strategy == "RollingUpdate" else {}
    )
    return msgspec.convert(
        {
            "metadata": {
                "name": "web",
                "namespace": "default",
                "uid": "uid-d",
                "resourceVersion": "7",
                "generation": generation,
                "annotations": annotations or {},
            },
            "spec": {
                "replicas": replicas,
                "strategy": {"type": strategy, **rolling},
                "selector": {"matchLabels": {"app": "web"}},
                "template": msgspec.Raw(msgspec.json.encode(template(image))),
                **spec,
            },
            "status": status or {},
        },
        Deployment,
    )


def replica_set(
    name: str,
    replicas: int = 0,
    *,
    available: int | None = None,
    pods: int | None = None,
    ready: int | None = None,
    age: int = 100,
    desired: int | None = None,
    maximum: int | None = None,
    revision: int | str | None = None,
    image: str = "",
    annotations: dict[str, str] | None = None,
    generation: int = 1,
    observed: int = 1,
    deleted: bool = False,
    conditions: list[dict[str, Any]] | None = None,
) -> ReplicaSet:
    """A ReplicaSet; without other counts all of its pods are available. `age` in seconds."""
    known = {
        **({} if desired is None else {DESIRED_REPLICAS: str(desired)}),
        **({} if maximum is None else {MAX_REPLICAS: str(maximum)}),
        **({} if revision is None else {REVISION: str(revision)}),
        **(annotations or {}),
    }
    present = replicas if pods is None else pods
    counted = present if available is None else available
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "resourceVersion": "7",
                "generation": generation,
                "creationTimestamp": timestamps.seconds(EPOCH - age),
                "annotations": known,
                **({"deletionTimestamp": timestamps.seconds(EPOCH)} if deleted else {}),
            },
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": msgspec.Raw(msgspec.json.encode(template(image or name, **{"pod-template-hash": name}))),
            },
            "status": {
                "replicas": present,
                "readyReplicas": counted if ready is None else ready,
                "availableReplicas": counted,
                "observedGeneration": observed,
                "conditions": conditions or [],
            },
        },
        ReplicaSet,
    )


def pod(
    name: str,
    *,
    node: str = "n",
    phase: str = "Running",
    ready_s: float | None = None,
    unready: bool = False,
    cost: str | None = None,
    restarts: int = 0,
    init_restarts: int = 0,
    age_s: float | None = 1000,
    labels: dict[str, str] | None = None,
    owner: str = "",
    deleted: bool = False,
    uid: str = "",
) -> Pod:
    """A pod; `ready_s`: ready for so long."""
    conditions = []
    if ready_s is not None:
        since = timestamps.microseconds(EPOCH - ready_s)
        conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": since}]
    elif unready:
        conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": timestamps.seconds(EPOCH)}]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid or f"uid-{name}",
                "resourceVersion": "7",
                "labels": {"app": "web"} if labels is None else labels,
                **({} if age_s is None else {"creationTimestamp": timestamps.microseconds(EPOCH - age_s)}),
                **({"deletionTimestamp": timestamps.seconds(EPOCH)} if deleted else {}),
                **(
                    {
                        "ownerReferences": [
                            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": owner, "controller": True}
                        ]
                    }
                    if owner
                    else {}
                ),
                "annotations": {} if cost is None else {"controller.kubernetes.io/pod-deletion-cost": cost},
            },
            "spec": {"nodeName": node},
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": [{"name": "a", "restartCount": restarts}],
                "initContainerStatuses": [{"name": "i", "restartCount": init_restarts}],
            },
        },
        Pod,
    )
