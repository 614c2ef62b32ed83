"""Scripted and generated histories of Deployments, and what is left of them in the end, normalised."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from kubeproxy.kubernetes.client.client import Client
from tests.workloads.cluster import pod_template
from tests.workloads.live.control_plane import ask

Json = dict[str, Any]
Step = Callable[["Play"], Awaitable[None]]

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

    async def begin(self, name: str = "web", **spec: Any) -> None:
        """Create the namespace and a Deployment."""
        await ask(self.client, "POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        template = pod_template("web:1", {"app": name})
        del template["spec"]["unknownField"]
        item = {
            "metadata": {"name": name, "annotations": {"team": "a"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": template, **spec},
        }
        await ask(self.client, "POST", f"{self._apps}/deployments", item)

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
            objects = [*deployments, *await self.replica_sets(), *await self.pods()]
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
        names = {
            item["metadata"]["name"]: f"rs-{item['metadata']['annotations'].get(REVISION)}" for item in replica_sets
        }
        self._names = names
        return {
            "deployments": [_normal(item, names) for item in deployments],
            "replicaSets": sorted((_normal(item, names) for item in replica_sets), key=lambda item: str(item["name"])),
            "pods": sorted(
                (item["spec"]["containers"][0]["image"], names.get(item["metadata"]["ownerReferences"][0]["name"], "?"))
                for item in await self.pods()
            ),
        }

    async def events(self) -> list[tuple[str, str, str, str]]:
        """The Events without their counts; after `outcome`."""
        events = (await ask(self.client, "GET", f"/api/v1/namespaces/{self.namespace}/events"))["items"]
        return sorted({_event(item, self._names) for item in events})


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


# Scripted


def _do(*actions: tuple[Any, ...] | str) -> Step:
    """Calls of `Play` in their order; text is the name of one without arguments."""

    async def play(it: Play) -> None:
        for action in actions:
            name, *arguments = (action,) if isinstance(action, str) else action
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            await getattr(it, name)(*arguments, **keywords)

    return play


async def _delete_pods(it: Play) -> None:
    for pod in (await it.pods())[:2]:
        await ask(it.client, "DELETE", f"/api/v1/namespaces/{it.namespace}/pods/{pod['metadata']['name']}")


async def _relabel(it: Play) -> None:
    pod = (await it.pods())[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{it.namespace}/pods/{pod}"
    await ask(it.client, "PATCH", path, {"metadata": {"labels": {"app": "other"}}})
    await it.settle()
    await ask(it.client, "PATCH", path, {"metadata": {"labels": {"app": "web"}}})


async def _orphan(it: Play) -> None:
    for item in await it.replica_sets():
        path = f"/apis/apps/v1/namespaces/{it.namespace}/replicasets/{item['metadata']['name']}"
        await ask(it.client, "PATCH", path, {"metadata": {"ownerReferences": None}})


RECREATE: Json = {"strategy": {"type": "Recreate"}}
ROLLBACK = "deprecated.deployment.rollback.to"


def _surge(surge: Any, unavailable: Any) -> Json:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}


SCRIPTED: dict[str, Step] = {
    "create": _do(("begin", {})),
    "zero": _do(("begin", {"replicas": 0}), "settle", ("edit", {"replicas": 2})),
    "update": _do(("begin", {"replicas": 5}), "settle", ("image", "web:2")),
    "update-at-once": _do(("begin", {"replicas": 5}), "seen", ("image", "web:2")),
    "two-updates": _do(("begin", {"replicas": 5}), "settle", ("image", "web:2"), "seen", ("image", "web:3")),
    "back-and-forth": _do(("begin", {}), "settle", ("image", "web:2"), "settle", ("image", "web:1")),
    "broken": _do(("begin", {"replicas": 6}), "settle", ("image", "broken:1")),
    "broken-late": _do(
        ("begin", {"replicas": 6, "progressDeadlineSeconds": 6}), "settle", ("image", "broken:1"), ("wait", 10)
    ),
    "broken-and-back": _do(
        ("begin", {"replicas": 6}), "settle", ("image", "broken:1"), "settle", ("image", "web:1"), "settle"
    ),
    "broken-and-mended": _do(("begin", {"replicas": 6}), "settle", ("image", "broken:1"), "settle", ("image", "web:2")),
    "scale-up": _do(("begin", {}), "settle", ("edit", {"replicas": 9})),
    "scale-down": _do(("begin", {"replicas": 9}), "settle", ("edit", {"replicas": 2})),
    "scale-broken-up": _do(
        ("begin", {"replicas": 6}), "settle", ("image", "broken:1"), "settle", ("edit", {"replicas": 11})
    ),
    "scale-broken-down": _do(
        ("begin", {"replicas": 8}), "settle", ("image", "broken:1"), "settle", ("edit", {"replicas": 3})
    ),
    "pause": _do(("begin", {}), "settle", ("edit", {"paused": True}), ("image", "web:2")),
    "pause-and-resume": _do(
        ("begin", {}), "settle", ("edit", {"paused": True}), ("image", "web:2"), "settle", ("edit", {"paused": False})
    ),
    "pause-and-scale": _do(("begin", {}), "settle", ("edit", {"paused": True}), "settle", ("edit", {"replicas": 5})),
    "born-paused": _do(("begin", {"paused": True}), "settle", ("edit", {"paused": False})),
    "recreate": _do(("begin", {"replicas": 4, **RECREATE}), "settle", ("image", "web:2")),
    "recreate-twice": _do(("begin", RECREATE), "settle", ("image", "web:2"), "settle", ("image", "web:3")),
    "surge-0": _do(("begin", {"replicas": 4, **_surge(0, 1)}), "settle", ("image", "web:2")),
    "surge-all": _do(("begin", {"replicas": 4, **_surge("100%", 0)}), "settle", ("image", "web:2")),
    "surge-edit": _do(("begin", {"replicas": 4}), "settle", ("edit", _surge(2, 2)), ("image", "web:2")),
    "no-deadline": _do(("begin", {"progressDeadlineSeconds": 2147483647}), "settle", ("image", "web:2")),
    "history": _do(
        ("begin", {"revisionHistoryLimit": 1}),
        "settle",
        *(step for number in (2, 3, 4) for step in (("image", f"web:{number}"), "settle")),
    ),
    "history-0": _do(("begin", {"revisionHistoryLimit": 0}), "settle", ("image", "web:2")),
    "min-ready": _do(("begin", {"minReadySeconds": 2}), "settle", ("image", "web:2")),
    "min-ready-edit": _do(("begin", {}), "settle", ("edit", {"minReadySeconds": 3})),
    "annotate": _do(("begin", {}), "settle", ("annotate", {"note": "1"}), "settle", ("annotate", {"note": None})),
    "rollback-last": _do(("begin", {}), "settle", ("image", "web:2"), "settle", ("annotate", {ROLLBACK: "0"})),
    "rollback-to": _do(
        ("begin", {}),
        "settle",
        ("image", "web:2"),
        "settle",
        ("image", "web:3"),
        "settle",
        ("annotate", {ROLLBACK: "1"}),
    ),
    "rollback-missing": _do(("begin", {}), "settle", ("annotate", {ROLLBACK: "9"})),
    "rollback-same": _do(("begin", {}), "settle", ("annotate", {ROLLBACK: "1"})),
    "delete-pods": _do(("begin", {}), "settle", "delete_pods"),
    "relabel": _do(("begin", {}), "settle", "relabel"),
    "orphan": _do(("begin", {}), "settle", "orphan"),
}


async def _wait(it: Play, seconds: float) -> None:
    await asyncio.sleep(seconds)


for _name, _step in (("delete_pods", _delete_pods), ("relabel", _relabel), ("orphan", _orphan), ("wait", _wait)):
    setattr(Play, _name, _step)


def generated(seed: int) -> Step:
    """A history by a seed. Between two steps all is quiet, so that the end does not depend on speed.

    All revisions are kept: of several that are too many, Kubernetes 1.20 looks at the oldest ReplicaSets, and newer
    versions, as ours, at the lowest revisions.
    """
    random = Random(seed)
    strategy = random.choice([RECREATE, _surge(1, 0), _surge("25%", "25%"), _surge("50%", 1), {}])
    actions: list[tuple[Any, ...] | str] = [
        ("begin", {"replicas": random.randint(0, 6), **strategy}),
        "settle",
    ]
    paused = False
    for _ in range(random.randint(3, 6)):
        choice = random.randrange(6)
        if choice <= 1:
            actions.append(("image", random.choice(["web:1", "web:2", "web:3", "broken:1"])))
        elif choice == 2:
            actions.append(("edit", {"replicas": random.randint(0, 7)}))
        elif choice == 3:
            paused = not paused
            actions.append(("edit", {"paused": paused}))
        elif choice == 4:
            actions.append(("annotate", {"note": str(random.randint(0, 2))}))
        else:
            actions.append("delete_pods")
        actions.append("settle")
    return _do(*actions)


async def play_all(client: Client, prefix: str, histories: dict[str, Step], *, at_once: int = 12) -> dict[str, Json]:
    """Play them, so many at once, each in a namespace of its own; their outcomes by name."""
    limit = asyncio.Semaphore(at_once)
    plays = {name: Play(client, f"{prefix}-{name}") for name in histories}

    async def play(name: str) -> Json:
        async with limit:
            await histories[name](plays[name])
            await plays[name].settle()
            return await plays[name].outcome()

    outcomes = dict(zip(plays, await asyncio.gather(*map(play, plays)), strict=True))
    await _events_are_written(client)
    return {name: {**outcome, "events": await plays[name].events()} for name, outcome in outcomes.items()}


async def _events_are_written(client: Client) -> None:
    """Events wait for their turn behind all other requests of a controller, sometimes for minutes."""
    loop = asyncio.get_running_loop()
    end, seen, since = loop.time() + HANG_S, "", loop.time()
    while loop.time() - since < 10:
        found = (await ask(client, "GET", "/api/v1/events"))["items"]
        state = json.dumps(sorted(item["metadata"]["uid"] + item["metadata"]["resourceVersion"] for item in found))
        if state != seen:
            seen, since = state, loop.time()
        assert loop.time() < end, "events never end"
        await asyncio.sleep(1)


async def versions(client: Client, prefix: str) -> dict[str, str]:
    """The resourceVersions of all ReplicaSets and pods below a prefix: the same while nothing is written."""
    found = {}
    for path in ("/apis/apps/v1/replicasets", "/api/v1/pods"):
        for item in (await ask(client, "GET", path))["items"]:
            metadata = item["metadata"]
            if metadata["namespace"].startswith(f"{prefix}-"):
                found[f"{metadata['namespace']}/{metadata['name']}"] = metadata["resourceVersion"]
    return found
