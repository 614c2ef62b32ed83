"""Random histories with everything that goes wrong: the end is the same, and the invariants hold at every write.

Each seed is one history. ``KUBEPROXY_HISTORIES=500`` plays more of them, from seed 0 on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

import pytest

from kubeproxy.kubernetes.client.errors import ApiError, OverloadedError, UnreachableError
from tests.controllers.api import Api, Json
from tests.controllers.cluster import Cluster, Controllers, is_complete, pod_template, running
from tests.controllers.invariants import Availability, Invariants
from tests.controllers.virtual_time import jump, run

HISTORIES = int(os.environ.get("KUBEPROXY_HISTORIES", "25"))


class Faults:
    """Makes the API server fail a part of all writes, while it is on."""

    def __init__(self, api: Api, random: Random) -> None:
        self._random = random
        self.share = 0.0
        self.away = False
        api.refuse = self._refuse
        api.lose = self._lose

    def _refuse(self, verb: str, resource: str, body: Json) -> Exception | None:
        if self.away:
            return UnreachableError("connection refused", cause="refused")
        if self._random.random() >= self.share:
            return None
        return self._random.choice(
            [
                ApiError("the object has been modified", cause="status 409", status=409, reason="Conflict"),
                ApiError("internal error", cause="status 500", status=500),
                OverloadedError("too many requests", cause="too many requests", status=429),
                UnreachableError("connection reset", cause="reset"),
            ]
        )

    def _lose(self, verb: str, resource: str) -> Exception | None:
        lost = self._random.random() < self.share / 2
        return UnreachableError("the answer was cut off", cause="cut") if lost else None


class History:
    """One random history of edits, faults and restarts."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(seed=seed)
        self.faults = Faults(self.cluster.api, self.random)
        self.invariants = Invariants(self.cluster.api)
        self.stack = AsyncExitStack()
        self.controllers: Controllers

    async def play(self) -> None:
        random, cluster = self.random, self.cluster
        late_s = random.choice([0.0, 0.0, 0.2, 3.0])
        cluster.api.watch_delay_s = lambda: random.uniform(0, late_s)
        cluster.api.latency_s = lambda: random.uniform(0, 0.05)
        repeated = random.choice([0.0, 0.0, 0.3])
        cluster.api.repeat = lambda: random.random() < repeated
        cluster.kubelet.ready_s = random.uniform(0.1, 5)
        cluster.kubelet.stop_s = random.uniform(0.1, 10)
        self.faults.share = random.choice([0.0, 0.05, 0.3])
        kind = random.choice(["RollingUpdate", "RollingUpdate", "RollingUpdate", "Recreate"])
        rolling = {"maxSurge": random.choice([0, 1, "25%", "100%"]), "maxUnavailable": random.choice([1, "25%", "60%"])}
        strategy = {"type": kind, **({"rollingUpdate": rolling} if kind == "RollingUpdate" else {})}
        cluster.deploy(
            replicas=random.randint(1, 8),
            strategy=strategy,
            minReadySeconds=random.choice([0, 0, 3]),
            revisionHistoryLimit=random.choice([0, 2, 10]),
            progressDeadlineSeconds=random.choice([20, 600]),
        )
        await self.start()
        for _ in range(random.randint(3, 14)):
            self.act()
            await asyncio.sleep(random.choice([0.0, 0.01, 0.1, 1.0, 10.0]))
            if random.random() < 0.25:
                await self.restart()
            self.invariants.check()
        await self.settle()
        await self.stack.aclose()

    def act(self) -> None:
        cluster, random = self.cluster, self.random
        actions = [
            lambda: cluster.set_image(random.choice(["web:1", "web:2", "web:3", "broken:1"])),
            lambda: cluster.set_image(random.choice(["web:1", "web:2", "web:3", "broken:1"])),
            lambda: cluster.edit({"replicas": random.randint(0, 12)}),
            lambda: cluster.edit({"paused": random.random() < 0.5}),
            lambda: self.annotate("deprecated.deployment.rollback.to", str(random.randint(0, 3))),
            lambda: self.annotate("note", str(random.randint(0, 3))),
            self.delete_pod,
            self.delete_replica_set,
            cluster.api.cut_watches,
            lambda: cluster.api.cut_watches(expire=True),
            self.go_away,
            lambda: jump(random.choice([-3600.0, -5.0, 5.0, 3600.0])),
        ]
        action: Callable[[], object] = random.choice(actions)
        action()

    def annotate(self, key: str, value: str) -> None:
        self.cluster.api.patch("deployments", "default", "web", {"metadata": {"annotations": {key: value}}})

    def delete_pod(self) -> None:
        pods = self.cluster.api.all("pods")
        if pods:
            self.cluster.api.delete("pods", "default", self.random.choice(pods)["metadata"]["name"])

    def delete_replica_set(self) -> None:
        sets = self.cluster.api.all("replicasets")
        if sets:
            self.cluster.api.delete("replicasets", "default", self.random.choice(sets)["metadata"]["name"])

    def go_away(self) -> None:
        self.faults.away = True
        self.cluster.api.cut_watches()
        asyncio.get_running_loop().call_later(self.random.choice([1.0, 60.0]), self.come_back)

    def come_back(self) -> None:
        self.faults.away = False

    async def start(self) -> None:
        self.controllers = await self.stack.enter_async_context(running(self.cluster.api, self.cluster.recorded))

    async def restart(self) -> None:
        """Killed wherever they are, and started again."""
        await self.stack.aclose()
        await self.start()

    async def settle(self) -> None:
        """Nothing goes wrong any more: one good template, so many pods, and then not a single write."""
        cluster = self.cluster
        self.faults.share = 0.0
        self.faults.away = False
        cluster.api.cut_watches()
        self.annotate("deprecated.deployment.rollback.to", "not-a-number")  # whatever was asked for is no longer
        cluster.edit({"paused": False, "replicas": 4})
        cluster.set_image("web:9")
        await cluster.until(lambda: is_complete(cluster.deployment()), within_s=5000)
        await cluster.quiet(self.controllers)
        before = cluster.api.writes
        self.controllers.resync()
        await asyncio.sleep(400)
        assert cluster.api.writes == before
        self.invariants.check()
        final = cluster.deployment()
        active = [item for item in cluster.api.all("replicasets") if item["spec"]["replicas"]]
        assert [item["spec"]["template"]["spec"]["containers"][0]["image"] for item in active] == ["web:9"]
        pods = cluster.api.all("pods")
        assert len(pods) == 4
        assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {active[0]["metadata"]["uid"]}
        stated = {each["type"]: each["reason"] for each in final["status"]["conditions"]}
        assert stated == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}
        revision = final["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
        assert active[0]["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == revision


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_history_ends_well(seed: int) -> None:
    run(History(seed).play())


@pytest.mark.parametrize("kill_after", range(1, 30))
def test_killed_after_every_single_write(kill_after: int) -> None:
    """A rolling update of three pods, its controllers killed after the n-th write; its answer never arrives."""

    async def play() -> None:
        cluster = Cluster()
        invariants = Invariants(cluster.api)
        cluster.deploy()
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
        seen = Availability(cluster.api)
        seen.begin()
        cluster.set_image("web:2")
        made = cluster.api.writes
        killed = asyncio.Event()

        def lose(verb: str, resource: str) -> Exception | None:
            if cluster.api.writes - made < kill_after:
                return None
            killed.set()
            return UnreachableError("killed", cause="cut")

        cluster.api.lose = lose
        cluster.api.refuse = lambda *_: UnreachableError("killed", cause="cut") if killed.is_set() else None
        async with running(cluster.api, cluster.recorded):
            await cluster.until(lambda: killed.is_set() or is_complete(cluster.deployment()))
        cluster.api.lose = lambda *_: None
        cluster.api.refuse = lambda *_: None
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
        assert cluster.sizes() == {"1": 0, "2": 3}
        assert len(cluster.api.all("pods")) == 3
        assert seen.fewest == 3
        assert seen.most <= 4
        invariants.check()

    run(play())


def test_two_deployments_that_select_the_same_pods_do_not_fight() -> None:
    async def play() -> None:
        cluster = Cluster()
        invariants = Invariants(cluster.api)
        for name in ("one", "two"):
            cluster.deploy(
                name, selector={"matchLabels": {"app": "same"}}, template=pod_template(labels={"app": "same"})
            )
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete("one")
            await cluster.until(lambda: cluster.deployment("two")["status"].get("observedGeneration") == 1)
            await cluster.quiet(controllers)
            before = cluster.api.writes
            await asyncio.sleep(100)
            assert cluster.api.writes == before
        invariants.check()

    run(play())
