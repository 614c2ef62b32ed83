"""A scenario around one Deployment: begun, played, and ended in quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.controllers.cluster import Cluster, Controllers, running
from tests.controllers.invariants import Invariants
from tests.controllers.virtual_time import run

Scenario = Callable[[Cluster, Controllers], Awaitable[None]]


def play_out(scenario: Scenario, **spec: Any) -> Cluster:
    """Deploy, wait for the first rollout, play the scenario, and demand that nothing is written when all is quiet."""
    cluster = None

    async def play() -> None:
        nonlocal cluster
        cluster = Cluster()
        invariants = Invariants(cluster.api)
        cluster.deploy(**spec)
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            await scenario(cluster, controllers)
            await cluster.quiet(controllers)
            before = cluster.api.writes
            controllers.resync()
            await asyncio.sleep(60)
            assert cluster.api.writes == before
        invariants.check()

    run(play())
    assert cluster is not None
    return cluster
