"""Nodes, kubelets and the garbage collector, played by timers of a scenario's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kubeproxy.kubernetes import timestamps
from tests.controllers.api import Api, Json, Write


class Kubelet:
    """Pods become ready `ready_s` after they were created, and are gone `stop_s` after their deletion.

    A pod with an image ``broken...`` never becomes ready; `is_broken` may decide otherwise.
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
                    "conditions": [self.condition(ready)],
                },
            },
        )

    def condition(self, ready: bool) -> Json:
        """A Ready condition that begins now."""
        moment = timestamps.seconds(self.api.clock())
        return {"type": "Ready", "status": str(ready), "lastTransitionTime": moment}

    def set_ready(self, name: str, ready: bool, namespace: str = "default") -> None:
        """A pod becomes ready, or is so no more."""
        self.api.patch("pods", namespace, name, {"status": {"phase": "Running", "conditions": [self.condition(ready)]}})

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
