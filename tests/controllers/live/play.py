"""One scripted history of a Deployment in a namespace of a real API server, and its normalised outcome."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.client.client import Client
from tests.controllers.cluster import is_complete, pod_template
from tests.controllers.live.control_plane import ask

Json = dict[str, Any]

REVISION = "deployment.kubernetes.io/revision"
QUIET_S = 4.0
HANG_S = 240.0


class Play:
    """One history in one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._names: dict[str, str] = {}

    @property
    def _apps(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}"

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    async def room(self) -> None:
        """Create the namespace alone."""
        metadata = {"name": self.namespace, "labels": {"history": self.namespace}}
        await ask(self.client, "POST", "/api/v1/namespaces", {"metadata": metadata})

    async def begin(self, name: str = "web", **spec: Any) -> None:
        """Create the namespace and a Deployment."""
        await self.room()
        await self.deploy(name, **spec)

    async def deploy(self, name: str = "web", **spec: Any) -> None:
        """Create a Deployment."""
        item = {
            "metadata": {"name": name, "annotations": {"team": "a"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": _template(name), **spec},
        }
        await ask(self.client, "POST", f"{self._apps}/deployments", item)

    async def keep(self, kind: str, name: str = "web", **spec: Any) -> None:
        """Create a ReplicaSet or a ReplicationController that no Deployment owns."""
        selector: Json = {"app": name} if kind == "replicationcontrollers" else {"matchLabels": {"app": name}}
        item = {
            "metadata": {"name": name},
            "spec": {"replicas": 3, "selector": selector, "template": _template(name), **spec},
        }
        await ask(self.client, "POST", self._collection(kind), item)

    async def change(self, kind: str, name: str = "web", **change: Any) -> None:
        """Patch one object."""
        await ask(self.client, "PATCH", f"{self._collection(kind)}/{name}", change)

    async def change_new(self, **change: Any) -> None:
        """Patch the ReplicaSet of the highest revision."""
        await self.change("replicasets", (await self._newest())["metadata"]["name"], **change)

    async def delete_new(self) -> None:
        """Delete the ReplicaSet of the highest revision by hand."""
        await self.delete("replicasets", (await self._newest())["metadata"]["name"])

    async def delete_old(self) -> None:
        """Delete the ReplicaSet of the lowest revision by hand."""
        found = sorted(await self.replica_sets(), key=_revision)
        await self.delete("replicasets", found[0]["metadata"]["name"])

    async def delete(self, kind: str, name: str = "web", policy: str = "Background") -> None:
        """Delete one object; another may take its name at once."""
        path = f"{self._collection(kind)}/{name}"
        uid = (await ask(self.client, "GET", path))["metadata"]["uid"]
        await ask(self.client, "DELETE", path, {"propagationPolicy": policy})
        for _ in range(600):
            found = (await ask(self.client, "GET", self._collection(kind)))["items"]
            if uid not in [item["metadata"]["uid"] for item in found]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{kind}/{name} in {self.namespace} is never gone")

    async def delete_pods(self) -> None:
        """Delete the first two pods."""
        for pod in (await self.pods())[:2]:
            await ask(self.client, "DELETE", f"{self._core}/pods/{pod['metadata']['name']}")

    async def relabel(self) -> None:
        """Take the first pod out of every selector, and then back."""
        path = f"{self._core}/pods/{(await self.pods())[0]['metadata']['name']}"
        await ask(self.client, "PATCH", path, {"metadata": {"labels": {"app": "other"}}})
        await self.settle()
        await ask(self.client, "PATCH", path, {"metadata": {"labels": {"app": "web"}}})

    async def orphan(self) -> None:
        """Take every ReplicaSet away from its owner."""
        for item in await self.replica_sets():
            await self.change("replicasets", item["metadata"]["name"], metadata={"ownerReferences": None})

    async def wait(self, seconds: float) -> None:
        """Let time pass: a deadline has to be exceeded."""
        await asyncio.sleep(seconds)

    async def loose_pod(self) -> None:
        """Create a pod that no controller owns, with the labels that are selected."""
        template = _template("web")
        item = {"metadata": {"name": "loose", **template["metadata"]}, "spec": template["spec"]}
        await ask(self.client, "POST", f"{self._core}/pods", item)

    async def pod_phase(self, phase: str) -> None:
        """Give the first pod a phase."""
        pod = (await self.pods())[0]["metadata"]["name"]
        await ask(self.client, "PATCH", f"{self._core}/pods/{pod}/status", {"status": {"phase": phase}})

    async def pod_ready(self, ready: bool) -> None:
        """Make the first pod ready, or not."""
        pod = (await self.pods())[0]["metadata"]["name"]
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamps.seconds(time.time())}
        await ask(self.client, "PATCH", f"{self._core}/pods/{pod}/status", {"status": {"conditions": [condition]}})

    async def quota(self, pods: int) -> None:
        """Allow so many pods, from now on; the quota is counted before this returns."""
        path, hard = f"{self._core}/resourcequotas", {"hard": {"pods": str(pods)}}
        found = (await ask(self.client, "GET", path))["items"]
        if found:
            await ask(self.client, "PATCH", f"{path}/few", {"spec": hard})
        else:
            await ask(self.client, "POST", path, {"metadata": {"name": "few"}, "spec": hard})
        for _ in range(600):
            if (await ask(self.client, "GET", f"{path}/few")).get("status", {}).get("hard") == hard["hard"]:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the quota is never counted")

    async def webhook(self, refuses: bool) -> None:
        """A webhook that never answers has to admit every pod of the namespace, or has not any more."""
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        if not refuses:
            await ask(self.client, "DELETE", f"{path}/{self.namespace}")
            return
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        hook = {
            "name": "pods.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/pods"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"history": self.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "timeoutSeconds": 2,
        }
        await ask(self.client, "POST", path, {"metadata": {"name": self.namespace}, "webhooks": [hook]})
        await asyncio.sleep(3)  # the server's admission looks its webhooks up anew every second

    async def complete(self) -> None:
        """Until the rollout is complete, after whatever back-off."""
        for _ in range(1200):
            if is_complete(await ask(self.client, "GET", f"{self._apps}/deployments/web")):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self.namespace} is never complete")

    async def _newest(self) -> Json:
        return max(await self.replica_sets(), key=_revision)

    def _collection(self, kind: str) -> str:
        return f"{self._core if kind == 'replicationcontrollers' else self._apps}/{kind}"

    async def edit(self, **spec: Any) -> None:
        """Change the spec."""
        await ask(self.client, "PATCH", f"{self._apps}/deployments/web", {"spec": spec})

    async def image(self, image: str) -> None:
        """Change the template."""
        await self.edit(template={"spec": {"containers": [{"name": "app", "image": image}]}})

    async def annotate(self, **annotations: str | None) -> None:
        """Change annotations."""
        await ask(self.client, "PATCH", f"{self._apps}/deployments/web", {"metadata": {"annotations": annotations}})

    async def pods(self) -> list[Json]:
        """The pods by name."""
        found = await ask(self.client, "GET", f"/api/v1/namespaces/{self.namespace}/pods")
        return sorted(found["items"], key=lambda item: str(item["metadata"]["name"]))

    async def replica_sets(self) -> list[Json]:
        """All ReplicaSets of the namespace, as the server has them."""
        items: list[Json] = (await ask(self.client, "GET", f"{self._apps}/replicasets"))["items"]
        return items

    async def settle(self) -> None:
        """Until nothing has been written for a while, and the newest spec was seen."""
        loop = asyncio.get_running_loop()
        end = loop.time() + HANG_S
        seen, since = "", loop.time()
        while True:
            deployments = (await ask(self.client, "GET", f"{self._apps}/deployments"))["items"]
            controllers = (await ask(self.client, "GET", f"{self._core}/replicationcontrollers"))["items"]
            objects = [*deployments, *controllers, *await self.replica_sets(), *await self.pods()]
            state = json.dumps([item["metadata"]["resourceVersion"] for item in objects])
            observed = all(
                item["status"].get("observedGeneration", 0) >= item["metadata"]["generation"] for item in deployments
            )
            ending = any("deletionTimestamp" in item["metadata"] for item in objects)
            if state != seen or not observed or ending:
                seen, since = state, loop.time()
            if loop.time() - since >= QUIET_S:
                return
            assert loop.time() < end, f"{self.namespace} never becomes quiet"
            await asyncio.sleep(0.5)

    async def seen(self) -> None:
        """Until the controller has acted on the newest spec, and pods are on their way."""
        for _ in range(600):
            item = await ask(self.client, "GET", f"{self._apps}/deployments/web")
            if item["status"].get("observedGeneration", 0) >= item["metadata"]["generation"] and await self.pods():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self.namespace} is not looked at")

    async def outcome(self) -> Json:
        """Everything that must be the same with every controller."""
        deployments = (await ask(self.client, "GET", f"{self._apps}/deployments"))["items"]
        replica_sets = await self.replica_sets()
        names = {item["metadata"]["name"]: f"rs-{_revision(item)}" for item in replica_sets if _revision(item)}
        self._names = names
        return {
            "deployments": [_normal(item, names) for item in deployments],
            "replicaSets": sorted((_normal(item, names) for item in replica_sets), key=lambda item: str(item["name"])),
            "controllers": [
                _normal(item, names)
                for item in (await ask(self.client, "GET", f"{self._core}/replicationcontrollers"))["items"]
            ],
            "pods": sorted(
                (item["spec"]["containers"][0]["image"], _owner(item, names), item["status"]["phase"])
                for item in await self.pods()
            ),
        }

    async def events(self) -> list[tuple[str, str, str, str]]:
        """The Events without their counts; after `outcome`."""
        events = (await ask(self.client, "GET", f"/api/v1/namespaces/{self.namespace}/events"))["items"]
        return sorted({_event(item, self._names) for item in events})


def _template(name: str) -> Json:
    template = pod_template("web:1", {"app": name})
    del template["spec"]["unknownField"]
    return template


def _revision(item: Json) -> int:
    return int((item["metadata"].get("annotations") or {}).get(REVISION, 0))


def _owner(item: Json, names: dict[str, str]) -> str:
    """The controller of a pod: a ReplicaSet by its revision, any other by its name."""
    owners = item["metadata"].get("ownerReferences") or [{"name": ""}]
    name = str(owners[0]["name"])
    return names.get(name, name)


def _normal(item: Json, names: dict[str, str]) -> Json:
    metadata = item["metadata"]
    status = dict(item["status"])
    stated = [
        (each["type"], each["status"], each.get("reason"), _named(each.get("message", ""), names))
        for each in status.pop("conditions", [])
    ]
    template = json.loads(json.dumps(item["spec"]["template"]))
    template["metadata"].get("labels", {}).pop("pod-template-hash", None)
    return {
        "name": names.get(metadata["name"], metadata["name"]),
        "annotations": metadata.get("annotations"),
        "owners": [(each["kind"], each["name"]) for each in metadata.get("ownerReferences", [])],
        "spec": {**item["spec"], "template": template, "selector": None},
        "status": {key: value for key, value in status.items() if key not in ("observedGeneration",)},
        "observed": status.get("observedGeneration", 0) >= metadata["generation"],
        "conditions": sorted(map(str, stated)),
    }


def _named(text: str, names: dict[str, str]) -> str:
    text = re.sub(r'pods? "[a-z0-9-]+" is forbidden', 'pods "NAME" is forbidden', text)
    for name, revision in names.items():
        text = text.replace(name, revision)
    return text


def _event(item: Json, names: dict[str, str]) -> tuple[str, str, str, str]:
    message = _named(item["message"], names)
    message = re.sub(r" from \d+ to \d+$| to \d+$", " to N", message)  # the number of steps may differ
    message = re.sub(r"(Created|Deleted) pod: \S+", r"\1 pod: NAME", message)
    message = message.removeprefix("(combined from similar events): ")
    # A ReplicaSet that was cleaned up is known by its hash only.
    message = re.sub(r"replica set web-\S+", "replica set NAME", message)
    message = re.sub(r"replica set rs-\S+", "replica set NAME", message)
    return item["involvedObject"]["kind"], item["type"], item["reason"], message
