"""Two processes on a real API server, in the middle of a rollout: the leader is killed, or stopped for too long.

Skipped unless KUBERNETES_BINARIES names the directory of etcd and kube-apiserver.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.controllers.cluster import is_complete
from tests.controllers.live.control_plane import BINARIES, ControlPlane, ask, binaries
from tests.controllers.live.node import Nodes
from tests.controllers.live.play import Play

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

LEASE = ("--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=1s")
EVENT_RESOURCES = {"events", "leases"}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    programs = binaries()
    assert programs is not None
    with ControlPlane(tmp_path, programs) as made:
        yield made


async def _until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str) -> None:
    for _ in range(600):
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"never: {what}")


async def _in_the_middle(plane: ControlPlane, disturb: Callable[[], Awaitable[None]]) -> None:
    """Roll a Deployment of 12 pods, disturb it in the middle, and demand that it ends well."""
    client = await plane.connect()
    nodes = asyncio.create_task(Nodes(client).run())
    try:
        it = Play(client, "roll")
        path = "/apis/apps/v1/namespaces/roll/deployments/web"

        async def updated() -> int:
            return int((await ask(client, "GET", path))["status"].get("updatedReplicas", 0))

        async def complete() -> bool:
            return is_complete(await ask(client, "GET", path))

        await it.begin(replicas=12)
        await _until(complete, "the first rollout ends")
        await it.image("web:2")

        async def half() -> bool:
            return await updated() >= 3

        await _until(half, "the rollout begins")
        await disturb()
        await _until(complete, "the second rollout ends")
        await it.settle()
        sizes = sorted(item["spec"]["replicas"] for item in await it.replica_sets())
        assert sizes == [0, 12]
        images = {pod["spec"]["containers"][0]["image"] for pod in await it.pods()}
        assert images == {"web:2"}
        assert len(await it.pods()) == 12
    finally:
        nodes.cancel()
        await asyncio.gather(nodes, return_exceptions=True)
        await client.close()


def test_the_leader_is_killed(plane: ControlPlane) -> None:
    plane.start_ours(*LEASE, name="first", user="first")

    async def disturb() -> None:
        plane.start_ours(*LEASE, name="second", user="second")
        plane.stop("first", signal.SIGKILL)

    asyncio.run(_in_the_middle(plane, disturb))
    assert [resource for _, _, resource in plane.writes_of("second") if resource == "deployments"]


def test_a_leader_that_was_stopped_for_longer_than_its_lease_writes_nothing_any_more(plane: ControlPlane) -> None:
    plane.start_ours(*LEASE, name="first", user="first")
    continued = 0.0

    async def disturb() -> None:
        nonlocal continued
        plane.start_ours(*LEASE, name="second", user="second")
        plane.signal("first", signal.SIGSTOP)
        await _until(
            lambda: bool([1 for _, _, what in plane.writes_of("second") if what not in EVENT_RESOURCES]), "it leads"
        )
        continued = time.time()
        plane.signal("first", signal.SIGCONT)
        await _until(lambda: plane.poll("first") is not None, "the first process ends")
        assert plane.poll("first") == 1

    asyncio.run(_in_the_middle(plane, disturb))
    late = [write for write in plane.writes_of("first") if write[0] > continued]
    assert late == []
    assert "leadership lost" in plane.log("first")


def test_a_stopped_leader_releases_the_lease(plane: ControlPlane) -> None:
    plane.start_ours(*LEASE, name="first", user="first")

    async def disturb() -> None:
        plane.start_ours(*LEASE, name="second", user="second")
        await _until(lambda: "another process leads" in plane.log("second"), "the second waits")
        ended = time.time()
        assert plane.stop("first", signal.SIGTERM) == 0
        await _until(lambda: bool(plane.writes_of("second")), "the second leads")
        assert plane.writes_of("second")[0][0] - ended < 8

    asyncio.run(_in_the_middle(plane, disturb))
