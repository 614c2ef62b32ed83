"""Finds the settings that a Deployment needs for rollouts without lost connections. They work with any Deployment
controller.

docs/rollouts.md has the reasons in detail.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from kubeproxy.controllers.readiness.gates import GATE
from kubeproxy.controllers.surge import resolve

SHUTDOWN_S: Final = 5
"""The time in seconds that a pod's programs get between the end of the preStop hook and SIGKILL."""
USE_S: Final = 5
"""The longest time in seconds that nodes are expected to take until they use a new pod."""
_GRACE_S: Final = 30
"""The default of terminationGracePeriodSeconds."""
_SHARE: Final = "25%"
"""The default of maxSurge and maxUnavailable."""
_WIDTH: Final = 100
_CONTROLLER: Final = "kubeproxy controller-manager --controllers=readiness"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The flags of ``kubeproxy rollout advise``."""

    timeout_s: int = 25
    """How long, in seconds, the hook waits for a pod's open connections to end."""
    port: int = 10258
    """The port on which the proxies answer preStop hooks."""
    gate: bool = False
    """Whether to add the readiness gate. Its controller must run in the cluster."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A patch of a Deployment with its reasons, and warnings about what the patch cannot mend."""

    patch: Object
    reasons: Sequence[str]
    warnings: Sequence[str]

    def lines(self, name: str) -> list[str]:
        """Return the advice as YAML with comments, which `kubectl patch --patch-file` accepts."""
        lines = [f"# deployment/{name}: what its rollouts need to lose no connection"]
        if not self.patch:
            lines.append("# Nothing is missing.")
        for reason in self.reasons:
            lines += _commented(reason, "- ")
        for warning in self.warnings:
            lines += _commented(warning, "! ")
        if self.patch:
            lines += yaml.safe_dump(self.patch, sort_keys=False, width=_WIDTH).splitlines()
        return lines


def _commented(text: str, mark: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"# {mark}", subsequent_indent="#   ")


def advise(deployment: Mapping[str, Any], wanted: Wanted) -> Advice:
    """Return advice for a Deployment. Raise ValueError if the object is not a Deployment."""
    spec = _mapping(deployment, "spec")
    pod = _mapping(_mapping(spec, "template"), "spec")
    if not pod.get("containers"):
        raise ValueError("spec.template.spec.containers: found none")
    gated = wanted.gate or _has_gate(pod)
    parts = (_hooks(pod, wanted), _grace(pod, wanted), _gate(pod) if gated else _ready(spec), _strategy(spec))
    patch: Object = {}
    reasons: list[str] = []
    for part, why in parts:
        _merge(patch, part)
        reasons += why
    return Advice(patch, reasons, list(_warnings(spec, pod, gated)))


_Part = tuple[Object, list[str]]


def _hooks(pod: Mapping[str, Any], wanted: Wanted) -> _Part:
    """Return a preStop hook for each container, because all containers get SIGTERM at the same time, and any of them
    may have connections."""
    if pod.get("hostNetwork"):
        return {}, []
    containers = []
    for container in pod["containers"]:
        present = _mapping(_mapping(container, "lifecycle"), "preStop")
        if "exec" in present or _is_drain(present) or "httpGet" in present:
            continue
        hook = {"httpGet": {"port": wanted.port, "path": f"/drain?timeout={wanted.timeout_s}s"}}
        removed = dict.fromkeys(present)
        containers.append({"name": container.get("name"), "lifecycle": {"preStop": {**removed, **hook}}})
    if not containers:
        return {}, []
    return _in_pod({"containers": containers}), [
        "lifecycle.preStop: before SIGTERM kubelet asks kubeproxy on the pod's node, which sends the pod no new "
        f"connections, and answers when those that are open have ended, after {wanted.timeout_s} s at the latest. "
        "The image needs nothing for it."
    ]


def _is_drain(hook: Mapping[str, Any]) -> bool:
    return str(_mapping(hook, "httpGet").get("path", "")).startswith("/drain")


def _grace(pod: Mapping[str, Any], wanted: Wanted) -> _Part:
    grace, least = pod.get("terminationGracePeriodSeconds"), wanted.timeout_s + SHUTDOWN_S
    if pod.get("hostNetwork") or (_GRACE_S if grace is None else int(grace)) >= least:
        return {}, []
    return _in_pod({"terminationGracePeriodSeconds": least}), [
        f"terminationGracePeriodSeconds: the hook's time counts, and the programs want {SHUTDOWN_S} s after it."
    ]


def _has_gate(pod: Mapping[str, Any]) -> bool:
    return {"conditionType": GATE} in (pod.get("readinessGates") or [])


def _gate(pod: Mapping[str, Any]) -> _Part:
    """Return the pod's readinessGates with the gate added. The patch has the whole list, because it replaces the
    list."""
    if _has_gate(pod):
        return {}, []
    return _in_pod({"readinessGates": [*(pod.get("readinessGates") or []), {"conditionType": GATE}]}), [
        "readinessGates: a new pod is ready when the proxies of all nodes use it, and no old pod goes before; after "
        "60 s it is ready in any case."
    ]


def _ready(spec: Mapping[str, Any]) -> _Part:
    if int(spec.get("minReadySeconds") or 0) >= USE_S:
        return {}, []
    return {"spec": {"minReadySeconds": USE_S}}, [
        f"minReadySeconds: no old pod goes before a new one has been ready for {USE_S} s, as long as slow nodes take "
        f"to use it. Where `{_CONTROLLER}` runs, --gate prints a readiness gate instead, which guesses no time."
    ]


def _strategy(spec: Mapping[str, Any]) -> _Part:
    strategy = _mapping(spec, "strategy")
    if strategy.get("type") == "Recreate":
        return {}, []
    update = _mapping(strategy, "rollingUpdate")
    replicas = spec.get("replicas")
    surge, unavailable = resolve(
        update.get("maxSurge", _SHARE), update.get("maxUnavailable", _SHARE), 1 if replicas is None else int(replicas)
    )
    if not unavailable:
        return {}, []
    change: Object = {"maxUnavailable": 0, **({} if surge else {"maxSurge": 1})}
    return {"spec": {"strategy": {"rollingUpdate": change}}}, [
        f"maxUnavailable: {unavailable} of the pods would go before their successors are there, and the others have "
        "to do their work."
    ]


def _warnings(spec: Mapping[str, Any], pod: Mapping[str, Any], gated: bool) -> Iterator[str]:
    if gated:
        yield f"readinessGates: without `{_CONTROLLER}` in the cluster no new pod ever becomes ready."
    if _mapping(spec, "strategy").get("type") == "Recreate":
        yield "strategy Recreate ends all pods before it makes new ones: clients wait meanwhile."
    if pod.get("hostNetwork"):
        yield (
            "hostNetwork: the pod's address is the node's, so nobody can tell its connections from others', and "
            "kubelet would ask the node itself. Let the program end its connections after SIGTERM."
        )
    for container in pod["containers"]:
        name, present = container.get("name"), _mapping(_mapping(container, "lifecycle"), "preStop")
        if "exec" in present or ("httpGet" in present and not _is_drain(present)):
            yield (
                f"container {name} has a preStop hook of its own, which stays: a container has one. Have the hook wait "
                "for the connections, or move its work to where the program handles SIGTERM."
            )
        if container.get("ports") and not container.get("readinessProbe"):
            yield f"container {name} has no readinessProbe: it counts as ready as soon as its process runs."
    if spec.get("replicas") == 1:
        yield "replicas: with one pod, clients wait if it fails, or its node."


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{key}: found {type(found).__name__}; allowed is an object")
    return found


def _in_pod(change: Object) -> Object:
    return {"spec": {"template": {"spec": change}}}


def _merge(patch: Object, part: Object) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and key in patch:
            _merge(patch[key], value)
        else:
            patch[key] = value
