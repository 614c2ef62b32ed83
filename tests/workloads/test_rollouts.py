"""Deployments rolled out by our controllers, from end to end, in memory and in virtual time."""

from __future__ import annotations

import asyncio

from tests.workloads.cluster import Cluster, running
from tests.workloads.virtual_time import run


def test_a_deployment_gets_a_replica_set_and_its_pods() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            (replica_set,) = cluster.replica_sets().values()
            assert replica_set["spec"]["template"]["spec"] == cluster.deployment()["spec"]["template"]["spec"]
            assert len(cluster.api.all("pods")) == 3
            assert cluster.condition("Progressing")["reason"] == "NewReplicaSetAvailable"  # type: ignore[index]
            before = cluster.api.writes
            controllers.resync()
            await asyncio.sleep(60)
            assert cluster.api.writes == before
            assert controllers.errors == 0

    run(scenario())


def test_a_new_image_is_rolled_out() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy(replicas=10)
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            cluster.set_image("web:2")
            await cluster.complete()
            await cluster.quiet(controllers)
            assert cluster.sizes() == {"1": 0, "2": 10}
            print(cluster.recorded.of("Deployment"), cluster.api.requests, controllers.errors)

    run(scenario())
