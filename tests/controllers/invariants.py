"""What must hold at every single write, whatever happens (the rules of a rollout, and of the API)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kubeproxy.controllers import surge
from kubeproxy.controllers.api_types import Deployment
from tests.controllers.api import Api, Json, Write
from tests.controllers.cluster import REVISION


class Invariants:
    """Watches an `Api`. A violation is kept, for an error inside a request would only be retried."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.violations: list[str] = []
        self._history_lost = False
        """The test deleted a ReplicaSet: its revision may be given again (as by upstream's controller)."""
        api.observers.append(self._check)

    def check(self) -> None:
        """AssertionError with all violations so far."""
        assert not self.violations, "\n".join(self.violations[:5])

    def _check(self, write: Write) -> None:
        if write.by != "controller":
            self._history_lost |= write.resource == "replicasets" and write.new is None
            return
        match write.resource:
            case "replicasets":
                self._replica_set(write)
            case "pods":
                self._pod(write)
            case "deployments":
                self._deployment(write)

    def _replica_set(self, write: Write) -> None:
        item = write.new or write.old
        assert item is not None
        owner = _controller(item)
        if owner is None or owner["kind"] != "Deployment":
            return
        owned = [each for each in self._of("replicasets") if (_controller(each) or {}).get("uid") == owner["uid"]]
        if write.old is None:
            templates = [_without_hash(each["spec"]["template"]) for each in owned]
            if templates.count(_without_hash(item["spec"]["template"])) > 1:
                self._violated(write, "two ReplicaSets with the same template")
        deployment = self._api.objects.get(("deployments", item["metadata"]["namespace"], owner["name"]))
        if deployment is None:
            return
        before = write.old["spec"]["replicas"] if write.old else 0
        after = write.new["spec"]["replicas"] if write.new else 0
        total = sum(each["spec"]["replicas"] for each in owned)
        typed = msgspec.convert({**deployment, "spec": _raw_template(deployment["spec"])}, Deployment)
        # A decision may have been made before an edit that no watch has shown: then the size was right a moment ago.
        seen = deployment["status"].get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        if after > before and seen and total > surge.max_total(typed) and typed.rolling:
            self._violated(write, f"{total} wanted pods, allowed are {surge.max_total(typed)}")
        if write.new is not None and write.old is not None:
            self._status(write, write.old, write.new)

    def _pod(self, write: Write) -> None:
        item = write.new or write.old
        assert item is not None
        if write.old is None and _controller(item) is None:
            self._violated(write, "a pod without a controller was created")
        gone = write.old is not None and (write.new is None or "deletionTimestamp" in write.new["metadata"])
        if gone and _controller(item) is None:
            self._violated(write, "a pod without a controller was deleted")

    def _deployment(self, write: Write) -> None:
        if write.old is None or write.new is None:
            self._violated(write, "a Deployment was created or deleted")
            return
        before, after = (
            int(each["metadata"].get("annotations", {}).get(REVISION, 0)) for each in (write.old, write.new)
        )
        if after < before and not self._history_lost:
            self._violated(write, f"revision went from {before} to {after}")
        self._status(write, write.old, write.new)

    def _status(self, write: Write, old: Json, new: Json) -> None:
        status = new["status"]
        if status.get("observedGeneration", 0) > new["metadata"]["generation"]:
            self._violated(write, "a generation was observed that does not exist")
        if status.get("observedGeneration", 0) < old["status"].get("observedGeneration", 0):
            self._violated(write, "observedGeneration went back")
        replicas = status.get("replicas", 0)
        for field in ("updatedReplicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas"):
            if status.get(field, 0) > replicas or status.get(field, 0) < 0:
                self._violated(write, f"{field} {status.get(field)} of {replicas}")
        if status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
            self._violated(write, "more available than ready")
        if status.get("collisionCount", 0) < old["status"].get("collisionCount", 0):
            self._violated(write, "collisionCount went back")
        types = [condition["type"] for condition in status.get("conditions", [])]
        if len(types) != len(set(types)):
            self._violated(write, f"conditions twice: {types}")

    def _of(self, resource: str) -> list[Json]:
        return [item for (of, _, _), item in self._api.objects.items() if of == resource]

    def _violated(self, write: Write, what: str) -> None:
        item: Any = write.new or write.old
        self.violations.append(f"{write.resource} {item['metadata']['name']} at {self._api.version}: {what}")


class Availability:
    """Ready pods of one Deployment at every write: how few there were, and how many in all."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.fewest: int | None = None
        self.most = 0
        api.observers.append(self._look)

    def begin(self) -> None:
        """Count from now on."""
        self.fewest, self.most = None, 0
        self._count()

    def _look(self, write: Write) -> None:
        if write.resource == "pods" and self.fewest is not None:
            self._count()

    def _count(self) -> None:
        pods = [item for (of, _, _), item in self._api.objects.items() if of == "pods"]
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(map(_ready, staying))
        self.fewest = ready if self.fewest is None else min(self.fewest, ready)
        self.most = max(self.most, len(staying))


def _ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _controller(item: Json) -> Json | None:
    owners = item["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller")), None)


def _without_hash(template: Json) -> str:
    found = json.loads(json.dumps(template))
    found.get("metadata", {}).get("labels", {}).pop("pod-template-hash", None)
    return json.dumps(found, sort_keys=True)


def _raw_template(spec: Json) -> Json:
    return {**spec, "template": msgspec.Raw(msgspec.json.encode(spec["template"]))}
