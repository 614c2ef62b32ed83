"""Scripted and generated histories of Deployments, ReplicaSets and ReplicationControllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from kubeproxy.kubernetes.client.client import Client
from tests.controllers.live.control_plane import ask
from tests.controllers.live.play import HANG_S, Json, Play

Step = Callable[[Play], Awaitable[None]]


def _do(*actions: tuple[Any, ...] | str) -> Step:
    """Calls of `Play` in their order; text is the name of one without arguments."""

    async def play(it: Play) -> None:
        for action in actions:
            name, *arguments = (action,) if isinstance(action, str) else action
            keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            await getattr(it, name)(*arguments, **keywords)

    return play


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
    "quota": _do("room", ("quota", 2), ("deploy", {"replicas": 5, "progressDeadlineSeconds": 6}), ("wait", 12)),
    "quota-raised": _do("room", ("quota", 2), ("deploy", {"replicas": 4}), "settle", ("quota", 9), "complete"),
    "quota-and-update": _do(
        "room", ("quota", 4), ("deploy", {"replicas": 4}), "settle", ("image", "web:2"), "complete"
    ),
    "quota-without-surge": _do(
        "room", ("quota", 4), ("deploy", {"replicas": 4, **_surge(0, 1)}), "settle", ("image", "web:2"), "complete"
    ),
    "webhook": _do("room", ("webhook", True), ("deploy", {"progressDeadlineSeconds": 6}), ("wait", 12)),
    "webhook-gone": _do("room", ("webhook", True), ("deploy", {}), "settle", ("webhook", False), "complete"),
    "delete-new": _do(("begin", {}), "settle", ("image", "web:2"), "settle", "delete_new", "complete"),
    "delete-old": _do(("begin", {}), "settle", ("image", "web:2"), "settle", "delete_old"),
    "delete-broken": _do(("begin", {"replicas": 4}), "settle", ("image", "broken:1"), "settle", "delete_new"),
    "relabelled-replica-set": _do(
        ("begin", {}), "settle", ("change_new", {"metadata": {"labels": {"app": "other"}}}), "complete"
    ),
    "replica-set-annotated": _do(
        ("begin", {}), "settle", ("change_new", {"metadata": {"annotations": {"team": "b", "own": "1"}}})
    ),
    "to-recreate": _do(
        ("begin", {"replicas": 4}),
        "settle",
        ("edit", {"strategy": {"type": "Recreate", "rollingUpdate": None}}),
        ("image", "web:2"),
    ),
    "from-recreate": _do(("begin", RECREATE), "settle", ("edit", _surge(1, 0)), ("image", "web:2")),
    "scale-while-updating": _do(
        ("begin", {"replicas": 6}), "settle", ("image", "web:2"), "seen", ("edit", {"replicas": 9}), "complete"
    ),
    "to-zero-and-back": _do(
        ("begin", {}),
        "settle",
        ("edit", {"replicas": 0}),
        "settle",
        ("image", "web:2"),
        "settle",
        ("edit", {"replicas": 3}),
    ),
    "pause-broken-and-scale": _do(
        ("begin", {"replicas": 8}),
        "settle",
        ("image", "broken:1"),
        "settle",
        ("edit", {"paused": True}),
        ("edit", {"replicas": 12}),
    ),
    "deadline-and-mended": _do(
        ("begin", {"progressDeadlineSeconds": 5}),
        "settle",
        ("image", "broken:1"),
        ("wait", 9),
        ("image", "web:2"),
        "complete",
    ),
    "deadline-and-paused": _do(
        ("begin", {"progressDeadlineSeconds": 5}),
        "settle",
        ("image", "broken:1"),
        ("wait", 9),
        ("edit", {"paused": True}),
        "settle",
        ("edit", {"paused": False}),
    ),
    "deadline-edit": _do(("begin", {}), "settle", ("edit", {"progressDeadlineSeconds": 2147483647})),
    "unready": _do(("begin", {}), "settle", ("pod_ready", False)),
    "ready-again": _do(("begin", {}), "settle", ("pod_ready", False), "settle", ("pod_ready", True)),
    "failed-pod": _do(("begin", {}), "settle", ("pod_phase", "Failed"), "complete"),
    "restart": _do(
        ("begin", {}),
        "settle",
        ("edit", {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}),
    ),
    "history-edit": _do(
        ("begin", {}),
        "settle",
        *(step for number in (2, 3, 4) for step in (("image", f"web:{number}"), "settle")),
        ("edit", {"revisionHistoryLimit": 1}),
    ),
    "template-labels": _do(
        ("begin", {}), "settle", ("edit", {"template": {"metadata": {"labels": {"tier": "front"}}}}), "complete"
    ),
    "adopts-a-replica-set": _do("room", ("keep", "replicasets", {}), "settle", ("deploy", {}), "complete"),
    "deleted": _do(("begin", {}), "settle", ("delete", "deployments")),
    "deleted-and-adopted": _do(
        ("begin", {}), "settle", ("delete", "deployments", "web", "Orphan"), "settle", ("deploy", {}), "complete"
    ),
    "replica-set": _do(
        "room", ("keep", "replicasets", {}), "settle", ("change", "replicasets", {"spec": {"replicas": 5}})
    ),
    "replica-set-adopts": _do("room", "loose_pod", ("keep", "replicasets", {}), "settle", "delete_pods"),
    "replica-set-quota": _do("room", ("quota", 1), ("keep", "replicasets", {}), "settle"),
    "rc": _do("room", ("keep", "replicationcontrollers", {}), "settle", "delete_pods"),
    "rc-scaled": _do(
        "room",
        ("keep", "replicationcontrollers", {"replicas": 6}),
        "settle",
        ("change", "replicationcontrollers", {"spec": {"replicas": 2, "minReadySeconds": 2}}),
    ),
    "rc-adopts": _do("room", "loose_pod", ("keep", "replicationcontrollers", {"replicas": 2}), "settle"),
    "rc-relabel": _do("room", ("keep", "replicationcontrollers", {}), "settle", "relabel"),
}


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
