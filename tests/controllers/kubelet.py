"""Nodes, kubelets and the garbage collector, played by timers of a scenario's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.object_client import STRATEGIC
from tests.controllers.api import Api, Json, Write

GATE_S = 0.1


class Kubelet:
    """Pods become ready `ready_s` after they were created, and are gone `stop_s` after their deletion.

    A pod with an image ``broken...`` never becomes ready; `is_broken` may decide otherwise. A pod with readiness gates
    is ready `GATE_S` after the last of their conditions is True, too.
    """

    def __init__(self, api: Api, *, ready_s: float = 1.0, stop_s: float = 1.0) -> None:
        self.api = api
        self.ready_s = ready_s
        self.stop_s = stop_s
        self.is_broken: Callable[[Json], bool] = lambda pod: pod["spec"]["containers"][0]["image"].startswith("broken")
        self._nodes = 0
        api.observers.append(self._observe)

    def _observe(self, write: Write) -> None:
        if write.old is None and write.new is not None and write.new["metadata"].get("ownerReferences"):
            self._later(1.0, self._collect_dangling, write.new)
        if write.resource == "pods" and write.new is not None:
            pod = write.new
            if write.old is None:
                self._later(self.ready_s, self._start, pod)
            elif "deletionTimestamp" in pod["metadata"] and "deletionTimestamp" not in write.old["metadata"]:
                self._later(self.stop_s, self._stop, pod)
            elif pod["spec"].get("readinessGates") and _is(pod, "Ready") != _is_ready(pod):
                self._later(GATE_S, self._judge, pod)
        elif write.new is None and write.old is not None and write.resource in ("deployments", "replicasets"):
            self._later(0.01, self._collect, write.old)

    def _later(self, delay_s: float, action: Callable[[Json], None], item: Json) -> None:
        asyncio.get_running_loop().call_later(delay_s, action, item)

    def _start(self, pod: Json) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        now = self.api.objects.get(("pods", namespace, name))
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or "deletionTimestamp" in now["metadata"]:
            return
        self._nodes += 1
        ready = not self.is_broken(now)
        self.api.patch(
            "pods",
            namespace,
            name,
            {
                "spec": {"nodeName": f"node-{self._nodes % 5}"},
                "status": {
                    "phase": "Running",
                    "podIPs": [{"ip": f"10.244.{self._nodes // 250}.{self._nodes % 250 + 1}"}],
                    "conditions": self.conditions(now, ready),
                },
            },
            STRATEGIC,
        )

    def conditions(self, pod: Json, ready: bool) -> list[Json]:
        """The conditions of a pod whose containers become ready now, or are so no more."""
        if not pod["spec"].get("readinessGates"):
            return [self.condition(ready)]
        return [self.condition(ready, "ContainersReady"), self.condition(ready and _gates_are_open(pod))]

    def condition(self, status: bool, type: str = "Ready") -> Json:
        """A condition that begins now."""
        moment = timestamps.seconds(self.api.clock())
        return {"type": type, "status": str(status), "lastTransitionTime": moment}

    def set_ready(self, name: str, ready: bool, namespace: str = "default") -> None:
        """The containers of a pod become ready, or are so no more."""
        conditions = self.conditions(self.api.get("pods", name, namespace), ready)
        self.api.patch("pods", namespace, name, {"status": {"phase": "Running", "conditions": conditions}}, STRATEGIC)

    def _judge(self, pod: Json) -> None:
        """Say whether a pod with gates is ready."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        now = self.api.objects.get(("pods", namespace, name))
        if now is not None and _is(now, "Ready") != _is_ready(now):
            conditions = [self.condition(_is_ready(now))]
            self.api.patch("pods", namespace, name, {"status": {"conditions": conditions}}, STRATEGIC)

    def _stop(self, pod: Json) -> None:
        key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        now = self.api.objects.get(key)
        if now is not None and now["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.api.remove(*key)

    def _collect(self, owner: Json) -> None:
        """Delete what a deleted object owned."""
        uid = owner["metadata"]["uid"]
        for (resource, namespace, name), item in list(self.api.objects.items()):
            owners: list[dict[str, Any]] = item["metadata"].get("ownerReferences", [])
            if any(each["uid"] == uid for each in owners):
                self.api.delete(resource, namespace, name)

    def _collect_dangling(self, item: Json) -> None:
        """Delete an object that was created for an owner that was gone by then."""
        uids = {each["metadata"]["uid"] for each in self.api.objects.values()}
        metadata = item["metadata"]
        key = (f"{item['kind'].lower()}s", metadata["namespace"], metadata["name"])
        now = self.api.objects.get(key)
        owners = [] if now is None else now["metadata"].get("ownerReferences", [])
        if owners and not any(owner["uid"] in uids for owner in owners):
            self.api.delete(*key)


def _is(pod: Json, type: str) -> bool:
    return any(each["type"] == type and each["status"] == "True" for each in pod["status"].get("conditions", []))


def _gates_are_open(pod: Json) -> bool:
    return all(_is(pod, gate["conditionType"]) for gate in pod["spec"].get("readinessGates", []))


def _is_ready(pod: Json) -> bool:
    return _is(pod, "ContainersReady") and _gates_are_open(pod)
