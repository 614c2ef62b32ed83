"""A whole control plane in one process and in virtual time: API server, controllers, kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from random import Random
from typing import Any, cast

from kubeproxy.controllers.deployments.controller import DeploymentController
from kubeproxy.controllers.event_reporter import EventReporter, EventType, Involved
from kubeproxy.controllers.informers import Informers
from kubeproxy.controllers.readiness.controller import ReadinessController
from kubeproxy.controllers.replicaset_kind import REPLICA_SET, REPLICATION_CONTROLLER
from kubeproxy.controllers.replicasets.controller import ReplicaSetController
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.list_watch_policy import Pace
from tests.controllers.api import Api, Json
from tests.controllers.kubelet import Kubelet
from tests.controllers.virtual_time import unix_time

HANG_S = 100_000.0
"""Virtual seconds after which a scenario counts as stuck."""


class Recorded(EventReporter):
    """The Events that were reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        """Kind and name of the object, reason, message."""

    def record(self, involved: Involved, type: EventType, reason: str, message: str) -> None:
        self.events.append((f"{involved.kind} {involved.name}", type, reason, message))

    def of(self, kind: str) -> list[tuple[str, str]]:
        """Reason and message of those about objects of a kind."""
        return [(reason, message) for about, _, reason, message in self.events if about.startswith(f"{kind} ")]


@dataclass(slots=True)
class Controllers:
    """The controllers on one set of informers; each start of them is like a new process."""

    replica_sets: ReplicaSetController
    replication_controllers: ReplicaSetController
    deployments: DeploymentController
    readiness: ReadinessController
    resync: Callable[[], None]

    @property
    def errors(self) -> int:
        """Syncs that failed."""
        return sum(each.controller.errors for each in self.every)

    @property
    def busy(self) -> bool:
        """Whether a key waits or is processed now."""
        return any(len(each.controller.queue) or each.controller.queue.processing for each in self.every)

    @property
    def every(self) -> tuple[ReplicaSetController | DeploymentController | ReadinessController, ...]:
        return self.replica_sets, self.replication_controllers, self.deployments, self.readiness


@asynccontextmanager
async def running(
    api: Api, recorded: Recorded, *, burst: int = 500, wait_for_reports: bool = True
) -> AsyncIterator[Controllers]:
    """The controllers, until the end of the block; then they are gone in the middle of whatever they do."""
    requests = cast(Client, api)
    informers = Informers()
    found = [getattr(informers, field.name) for field in fields(informers)]
    all_informers = [each for each in found if isinstance(each, Informer)]

    def resync() -> None:
        for informer in all_informers:
            informer.resync()

    def replica_set_controller(kind: Any, informer: Any) -> ReplicaSetController:
        return ReplicaSetController(
            kind,
            requests=requests,
            replica_sets=informer,
            pods=informers.pods,
            sink=recorded,
            workers=5,
            clock=unix_time,
            burst=burst,
        )

    controllers = Controllers(
        replica_sets=replica_set_controller(REPLICA_SET, informers.replica_sets),
        replication_controllers=replica_set_controller(REPLICATION_CONTROLLER, informers.replication_controllers),
        deployments=DeploymentController(
            requests=requests,
            informers=informers,
            sink=recorded,
            workers=5,
            clock=unix_time,
        ),
        readiness=ReadinessController(
            requests=requests, informers=informers, sink=recorded, workers=5, clock=unix_time
        ),
        resync=resync,
    )
    outages = Connectivity(server=api.server, clock=unix_time)
    pace = Pace(slice_s=0.0)  # others get their turn after every object, not after a time that no test can know
    tasks = [
        asyncio.create_task(informer.run(requests, outages=outages, pace=pace, random=Random(1)))
        for informer in all_informers
    ]
    for informer in all_informers:
        if wait_for_reports or informer is not informers.leases:
            await informer.synced.wait()
    tasks += [asyncio.create_task(each.controller.run()) for each in controllers.every]
    try:
        yield controllers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Cluster:
    """API server and kubelets."""

    def __init__(self, *, seed: int = 0) -> None:
        self.api = Api(unix_time, seed=seed)
        self.kubelet = Kubelet(self.api)
        self.recorded = Recorded()

    def forbid_reports(self) -> None:
        """Let no one read the Leases that hold the proxies' reports."""
        listed = self.api.get_json

        async def forbidding(path: str, query: Any = None, **more: Any) -> bytearray:
            if "leases" in path:
                raise status_error(Status(reason="Forbidden", message="no"), code=403, seen="the server answered")
            return await listed(path, query, **more)

        self.api.get_json = forbidding  # type: ignore[method-assign]

    def deploy(self, name: str = "web", *, image: str = "web:1", **spec: Any) -> Json:
        """Create a Deployment, with the server's defaults."""
        return self.api.create("deployments", "default", deployment(name, image=image, **spec))

    def edit(self, spec: Json, name: str = "web") -> None:
        """Change the spec of a Deployment."""
        self.api.patch("deployments", "default", name, {"spec": spec})

    def set_image(self, image: str, name: str = "web") -> None:
        """Change the template of a Deployment."""
        self.edit({"template": {"spec": {"containers": [{"name": "app", "image": image}]}}}, name)

    def deployment(self, name: str = "web") -> Json:
        """The Deployment as it is."""
        return self.api.get("deployments", name)

    def replica_sets(self) -> dict[str, Json]:
        """The ReplicaSets, by revision."""
        return {item["metadata"]["annotations"].get(REVISION, "?"): item for item in self.api.all("replicasets")}

    def sizes(self) -> dict[str, int]:
        """Wanted pods of each ReplicaSet, by revision."""
        return {revision: item["spec"]["replicas"] for revision, item in self.replica_sets().items()}

    def condition(self, type: str, name: str = "web") -> Json | None:
        """A condition of the Deployment."""
        stated = self.deployment(name)["status"].get("conditions", [])
        return next((condition for condition in stated if condition["type"] == type), None)

    async def until(self, done: Callable[[], object], *, within_s: float = HANG_S) -> None:
        """Wait for a condition. Look soon after every write, and otherwise twice a second.

        Most conditions copy objects, and a scenario lasts for hours.
        """
        loop = asyncio.get_running_loop()
        end, seen, next_look = loop.time() + within_s, -1, 0.0
        while True:
            if self.api.version != seen or loop.time() >= next_look:
                seen, next_look = self.api.version, loop.time() + 0.5
                if done():
                    return
            if loop.time() > end:
                raise AssertionError(f"not within {within_s} s")
            await asyncio.sleep(0.05)

    async def complete(self, name: str = "web") -> None:
        """Wait until a rollout has ended well."""
        await self.until(lambda: is_complete(self.deployment(name)))

    async def quiet(self, controllers: Controllers, *, for_s: float = 30.0) -> None:
        """Wait until nothing was written for so long."""
        loop = asyncio.get_running_loop()
        seen, since = self.api.version, loop.time()
        end = since + HANG_S
        while loop.time() - since < for_s or controllers.busy:
            await asyncio.sleep(0.5)
            if self.api.version != seen:
                seen, since = self.api.version, loop.time()
            if loop.time() > end:
                raise AssertionError("it never becomes quiet")


REVISION = "deployment.kubernetes.io/revision"


def is_complete(item: Json) -> bool:
    """As `kubectl rollout status` sees it."""
    status, replicas = item["status"], item["spec"]["replicas"]
    return bool(
        status.get("observedGeneration", 0) >= item["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == replicas
        and status.get("replicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
    )


def pod_template(image: str = "web:1", labels: dict[str, str] | None = None) -> Json:
    """A template with one container, and a field that no controller knows."""
    return {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": image}], "unknownField": {"kept": [1, None, {}]}},
    }


def deployment(name: str = "web", *, image: str = "web:1", **spec: Any) -> Json:
    """A Deployment as the server completes it."""
    return {
        "metadata": {"name": name, "annotations": {"team": "a"}},
        "spec": {
            "replicas": 3,
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": pod_template(image, {"app": name}),
            **spec,
        },
    }
