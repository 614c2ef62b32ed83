"""Rollouts on a real API server while everything fails: the end is the same, and then nothing is written any more.

Skipped unless KUBERNETES_BINARIES names the directory of etcd and kube-apiserver.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.informers import pod_informer
from kubeproxy.controllers.pod_state import is_ready
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.informer.connectivity import Connectivity
from tests.controllers.cluster import is_complete
from tests.controllers.live.control_plane import BINARIES, ControlPlane, ask, binaries
from tests.controllers.live.fault_proxy import FaultProxy
from tests.controllers.live.node import Nodes
from tests.controllers.live.play import Play

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

OURS = "second"
"""The user by which the audit log knows the controller manager."""
RESYNC_S = 2
FLAGS = ("--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=500", f"--min-resync-period={RESYNC_S}s")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = binaries()
    assert programs is not None
    with ControlPlane(tmp_path_factory.mktemp("plane"), programs) as made:
        yield made


class Ready:
    """Ready pods of one namespace at every event: how few there were."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._pods = pod_informer()
        self._pods.add_handler(self)
        self._begun = False
        self.fewest = 0

    async def run(self, client: Client) -> None:
        await self._pods.run(client, outages=Connectivity(server=client.server, clock=lambda: 0.0))

    def begin(self) -> None:
        """Count from now on."""
        self._begun, self.fewest = True, self._ready()

    def added(self, item: Pod) -> None:
        self._count()

    def updated(self, old: Pod, new: Pod) -> None:
        self._count()

    def deleted(self, item: Pod) -> None:
        self._count()

    def _count(self) -> None:
        if self._begun:
            self.fewest = min(self.fewest, self._ready())

    def _ready(self) -> int:
        return sum(
            is_ready(pod) and pod.metadata.deletion_timestamp is None
            for pod in self._pods.store
            if pod.metadata.namespace == self._namespace
        )


class Trial:
    """One rollout of a Deployment under a fault."""

    def __init__(self, plane: ControlPlane, proxy: FaultProxy, it: Play) -> None:
        self.plane = plane
        self.proxy = proxy
        self.it = it

    def start(self) -> None:
        """Start the controller manager."""
        self.plane.start_ours(*FLAGS, user=OURS, server=self.proxy.url)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.plane.runs("ours"):
            self.plane.stop("ours", signal.SIGKILL)

    async def roll(self) -> None:
        """Two changes of the template and one of the size, without waiting between them."""
        await self.it.image("web:2")
        await self.it.edit(replicas=6)
        await asyncio.sleep(1)
        await self.it.image("web:3")


Fault = Callable[[Trial], Awaitable[None]]


async def _play(plane: ControlPlane, name: str, fault: Fault) -> None:
    """Roll out four pods, then others while `fault` happens; all must end well."""
    client = await plane.connect()
    it, ready = Play(client, name), Ready(name)
    tasks = [asyncio.create_task(Nodes(client).run()), asyncio.create_task(ready.run(client))]
    try:
        async with FaultProxy(plane, seed=1) as proxy:
            trial = Trial(plane, proxy, it)
            await it.begin(replicas=4)
            trial.start()
            await _until_complete(client, it)
            await it.settle()
            ready.begin()
            await asyncio.wait_for(fault(trial), 300)
            proxy.refused = proxy.lost = proxy.late_s = proxy.repeated = 0.0
            proxy.expired, proxy.written = False, lambda: True
            proxy.cut_watches()
            if not plane.runs("ours"):
                trial.start()
            await _until_complete(client, it)
            await it.settle()
            await _expect_end(it)
            assert ready.fewest >= 3, "more than one of four pods was away"
            await _expect_silence(plane)
    finally:
        if plane.runs("ours"):
            plane.stop("ours", signal.SIGKILL)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def _until_complete(client: Client, it: Play) -> None:
    path = f"/apis/apps/v1/namespaces/{it.namespace}/deployments/web"
    for _ in range(1200):
        if is_complete(await ask(client, "GET", path)):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{it.namespace} is never complete")


async def _expect_end(it: Play) -> None:
    found = await it.outcome()
    (deployment,) = found["deployments"]
    assert deployment["status"]["availableReplicas"] == 6
    assert {pod[0] for pod in found["pods"]} == {"web:3"}
    assert len(found["pods"]) == 6
    assert sorted(each["spec"]["replicas"] for each in found["replicaSets"])[-2:] == [0, 6]
    templates = [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in found["replicaSets"]]
    assert len(templates) == len(set(templates)), "two ReplicaSets with one template"
    stated = " ".join(deployment["conditions"])
    assert "MinimumReplicasAvailable" in stated
    assert "NewReplicaSetAvailable" in stated
    assert "ReplicaFailure" not in stated


async def _expect_silence(plane: ControlPlane) -> None:
    """Every object is looked at again at least twice, and not one write follows."""
    before = len(plane.writes_of(OURS))
    await asyncio.sleep(RESYNC_S * 2 * 2 + 1)
    assert plane.writes_of(OURS)[before:] == []


async def _killed(trial: Trial, every: int) -> None:
    """Each process may make so many writes, and is killed before the answer to the last."""
    made = 0
    ended = asyncio.Event()

    def written() -> bool:
        nonlocal made
        made += 1
        if made % every:
            return True
        trial.kill()
        ended.set()
        return False

    trial.proxy.written = written
    await trial.roll()
    incarnations = 0
    while True:
        try:
            async with asyncio.timeout(8):
                await ended.wait()
        except TimeoutError:
            break  # it has nothing more to write
        ended.clear()
        incarnations += 1
        trial.start()
    assert incarnations >= 10
    assert made >= 20


async def _killed_after_every_write(trial: Trial) -> None:
    await _killed(trial, 1)


async def _killed_after_every_third_write(trial: Trial) -> None:
    await _killed(trial, 3)


async def _refusing(trial: Trial) -> None:
    trial.proxy.refused = 0.4
    await trial.roll()
    await asyncio.sleep(15)


async def _losing_answers(trial: Trial) -> None:
    trial.proxy.lost = 0.3
    await trial.roll()
    await asyncio.sleep(15)


async def _cutting_watches(trial: Trial) -> None:
    await trial.roll()
    for number in range(40):
        trial.proxy.expired = number % 4 == 0
        trial.proxy.cut_watches()
        await asyncio.sleep(0.3)


async def _late_and_repeated_events(trial: Trial) -> None:
    trial.proxy.late_s, trial.proxy.repeated = 0.5, 0.3
    await trial.roll()
    await asyncio.sleep(15)


async def _server_away(trial: Trial) -> None:
    """For a minute, in the middle of the rollout."""
    await trial.roll()
    trial.plane.stop("kube-apiserver", signal.SIGKILL)
    await asyncio.sleep(60)
    assert trial.plane.runs("ours")
    trial.plane.start_server()
    await (await trial.plane.connect()).close()


@pytest.mark.parametrize(
    "fault",
    [
        _killed_after_every_write,
        _killed_after_every_third_write,
        _refusing,
        _losing_answers,
        _cutting_watches,
        _late_and_repeated_events,
        _server_away,
    ],
    ids=lambda fault: fault.__name__.strip("_").replace("_", "-"),
)
def test_the_rollout_ends_well(plane: ControlPlane, fault: Fault) -> None:
    asyncio.run(_play(plane, fault.__name__.strip("_").replace("_", "-"), fault))
