"""The controller manager as a whole: leading, pages, and what it takes to be ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import click
import pytest
from prometheus_client import generate_latest

from kubeproxy.cli.controller_manager import FLAGS, controller_manager, enabled, settings_of
from kubeproxy.controllers.manager.manager import READINESS_LEASE, ControllerManager, ManagerSettings
from kubeproxy.controllers.manager.metrics import registry
from kubeproxy.controllers.manager.pages import status_document, status_text, unready
from kubeproxy.controllers.manager.process import summary
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.client.request_metrics import Requests
from kubeproxy.kubernetes.controller import leader_election
from kubeproxy.model.errors import ConfigError
from tests.controllers.cluster import Cluster, pod_template
from tests.controllers.proxies import Proxies, expose
from tests.controllers.virtual_time import run, unix_time


class Connection:
    """A client of the API server in memory, with the guard and the counters of a real one."""

    server = "https://api.test"

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self.guard: Callable[[], None] | None = None
        self.requests = Requests(host="api.test")

    async def get_json(self, path: str, query: Mapping[str, str] | None = None, **more: Any) -> bytearray:
        body = await self._api.get_json(path, query, **more)
        self.requests.answered("GET", 200, 0.01)
        return body

    async def send_json(self, method: str, path: str, body: bytes, **more: Any) -> bytearray:
        if self.guard is not None:
            self.guard()
        answer = await self._api.send_json(method, path, body, **more)
        self.requests.answered(method, 200, 0.01)
        return answer

    def pieces(self, *arguments: Any, **more: Any) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        self.requests.answered("GET", 200, 0.01)
        return self._api.pieces(*arguments, **more)

    def stream(self, *arguments: Any, **more: Any) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._api.stream(*arguments, **more)

    async def close(self) -> None:
        return


class Manager:
    """One manager process."""

    def __init__(self, cluster: Cluster, identity: str, **settings: Any) -> None:
        async def connect(purpose: str) -> Client:
            return cast(Client, Connection(cluster))

        self.manager = ControllerManager(ManagerSettings(identity=identity, **settings), connect, clock=unix_time)
        self.task = asyncio.create_task(self.manager.run())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.manager.close()


@pytest.fixture(autouse=True)
def _virtual_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease by the clock of the scenario."""
    real = leader_election.Leadership.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        loop = asyncio.get_running_loop()
        real(self, *arguments, **{**more, "clock": loop.time, "unix_clock": unix_time})

    monkeypatch.setattr(leader_election.Leadership, "__init__", init)


@asynccontextmanager
async def _managed(cluster: Cluster, **settings: Any) -> AsyncIterator[Manager]:
    made = Manager(cluster, "first", **settings)
    try:
        yield made
    finally:
        await made.end()


def test_one_manager_from_start_to_end() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        async with _managed(cluster) as it:
            assert unready(it.manager) == "the caches are not complete yet"
            await cluster.complete()
            assert unready(it.manager) is None
            assert summary(it.manager) == "keeps 1 Deployments and 3 pods; 0 keys wait"
            await asyncio.sleep(5)
            events = [item["message"] for item in cluster.api.all("events")]
            assert any(message.startswith("Scaled up replica set") for message in events)
            sources = {item["source"]["component"] for item in cluster.api.all("events")}
            assert sources == {"deployment-controller", "replicaset-controller"}
            involved = {
                (item["involvedObject"]["kind"], item["involvedObject"]["apiVersion"])
                for item in cluster.api.all("events")
            }
            assert involved == {("Deployment", "apps/v1"), ("ReplicaSet", "apps/v1")}
        holder = cluster.api.get("leases", "kubeproxy-controller-manager", "kube-system")["spec"]["holderIdentity"]
        assert holder == ""  # given up, so that the next one need not wait

    run(scenario())


def test_the_second_takes_over_from_a_killed_first() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        first = Manager(cluster, "first")
        await cluster.complete()
        second = Manager(cluster, "second")
        await asyncio.sleep(10)
        assert unready(second.manager) is None
        assert summary(second.manager) == "waits for the lease of first"
        assert not second.manager.controllers
        first.task.cancel()  # killed: it gives nothing up
        await asyncio.gather(first.task, return_exceptions=True)
        cluster.set_image("web:2")
        await cluster.complete()
        assert second.manager.working
        await second.end()

    run(scenario())


def test_nothing_is_written_after_the_lease_was_lost() -> None:
    """Renewals fail for longer than the lease; every other write would still be taken."""

    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy(replicas=5)
        it = Manager(cluster, "first")
        await cluster.complete()
        loop = asyncio.get_running_loop()
        lost = UnreachableError("no answer", cause="timeout")
        cluster.api.refuse = lambda verb, resource, body: lost if resource == "leases" else None
        late = []
        begun = loop.time()
        cluster.api.observers.append(
            lambda write: late.append(write) if write.by == "controller" and loop.time() > begun + 12 else None
        )
        for number in range(2, 30):  # something to do all the time
            cluster.set_image(f"web:{number}")
            await asyncio.sleep(1)
        assert it.task.done()
        assert it.task.exception() is None
        assert not it.manager.working
        assert not late
        await it.end()

    run(scenario())


def test_without_leader_election() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        async with _managed(cluster, leader_elect=False) as it:
            await cluster.complete()
            assert it.manager.leadership is None
            assert cluster.api.all("leases", "kube-system") == []

    run(scenario())


def test_only_the_controllers_that_are_enabled_work() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        item = {
            "metadata": {"name": "rc"},
            "spec": {"replicas": 1, "selector": {"app": "rc"}, "template": pod_template(labels={"app": "rc"})},
        }
        cluster.api.create("replicationcontrollers", "default", item)
        async with _managed(cluster, controllers=frozenset({"deployment"})) as it:
            await cluster.until(lambda: cluster.api.all("replicasets"))
            await asyncio.sleep(20)
            assert cluster.api.all("pods") == []
            assert [each.name for each in it.manager.controllers] == ["deployment"]
            assert "list replicationcontrollers" not in cluster.api.requests

    run(scenario())


def test_status_and_metrics() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.deploy()
        cluster.deploy("slow", image="broken")
        async with _managed(cluster) as it:
            await cluster.complete()
            await asyncio.sleep(10)
            document = status_document(it.manager, unix_time())
            assert document["leading"]
            assert document["leader"] == "first"
            states = [(each["name"], each["state"]) for each in document["rollouts"]]
            assert states == [("slow", "progressing"), ("web", "complete")]
            assert "is not ready" in document["rollouts"][0]["waitsFor"]
            text = status_text(document)
            assert "controller manager: leads\n" in text
            assert "default/slow: progressing, revision 1, 3 of 3 updated, 0 available; waits: pod slow-" in text
            scraped = generate_latest(registry(it.manager)).decode()
            for line in (
                'leader_election_master_status{name="kubeproxy-controller-manager"} 1.0',
                'workqueue_depth{name="deployment"} 0.0',
                'workqueue_retries_total{name="replicaset"} 0.0',
                'kubeproxy_rollouts{state="complete"} 1.0',
                'kubeproxy_rollouts{state="progressing"} 1.0',
                'kubeproxy_cached_objects{resource="pods"} 6.0',
                'kubeproxy_watch_behind_seconds{resource="pods"} 0.0',
            ):
                assert line in scraped, scraped
            assert 'rest_client_requests_total{code="200",host="api.test",method="POST"}' in scraped
            assert 'workqueue_work_duration_seconds_bucket{le="+Inf",name="deployment"}' in scraped

    run(scenario())


def test_readiness_gates_alone_beside_another_manager() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        alone = settings_of(_parsed("--controllers=readiness"), frozenset({"readiness"}))
        assert (alone.lease, alone.controllers) == (READINESS_LEASE, {"readiness"})
        renewed = {
            "holderIdentity": "them",
            "leaseDurationSeconds": 15,
            "renewTime": timestamps.microseconds(unix_time()),
        }
        cluster.api.create("leases", "kube-system", {"metadata": {"name": "kube-controller-manager"}, "spec": renewed})
        async with _managed(cluster, controllers=alone.controllers, lease=alone.lease) as it:
            await cluster.until(lambda: it.manager.working)
            await asyncio.sleep(5)
            assert summary(it.manager) == "watches 0 pods; 0 keys wait"
            assert it.manager.rival is None
            listed = {used for used in cluster.api.requests if used.startswith("list ")}
            assert listed == {"list pods"}, "Services and reports are not watched before a pod has the gate"
            gate = {"readinessGates": [{"conditionType": "kubeproxy/in-use"}]}
            for name in ("a", "b"):
                pod = {
                    "metadata": {"name": name, "labels": {"app": "web"}},
                    "spec": {"containers": [{"image": ""}], **gate},
                }
                cluster.api.create("pods", "default", pod)
            await cluster.until(lambda: it.manager.readiness is not None and it.manager.readiness.opened.total() == 2)
            scraped = generate_latest(registry(it.manager)).decode()
            assert 'kubeproxy_readiness_gates_opened_total{reason="NoService"} 2.0' in scraped
            assert "kubeproxy_readiness_gates_waiting 0.0" in scraped
            expose(cluster.api)
            proxies = Proxies(cluster.api, 1)
            proxies.stuck.add("node-0")
            await asyncio.sleep(1)
            pod["metadata"] = {"name": "c", "labels": {"app": "web"}}
            cluster.api.create("pods", "default", pod)
            await asyncio.sleep(5)
            assert summary(it.manager).endswith("; 1 pods wait at their readiness gate")
            assert "1 pods wait at their readiness gate" in status_text(status_document(it.manager, unix_time()))
            proxies.close()

    run(scenario())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", {"deployment", "replicaset", "replicationcontroller", "readiness"}),
        ("*,-replicaset", {"deployment", "replicationcontroller", "readiness"}),
        ("readiness", {"readiness"}),
        ("deployment", {"deployment"}),
        ("deployment-controller,replicaset-controller", {"deployment", "replicaset"}),
        ("replicationcontroller-controller", {"replicationcontroller"}),
        ("replication-controller", {"replicationcontroller"}),
        ("*,-deployment-controller,-readiness", {"replicaset", "replicationcontroller"}),
    ],
)
def test_choosing_controllers(text: str, expected: set[str]) -> None:
    assert enabled(text) == expected


@pytest.mark.parametrize(
    "text", ["", "endpoint", "*,-foo", "-deployment", "*,-deployment,-replicaset,-replicationcontroller,-readiness"]
)
def test_choosing_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--controllers"):
        enabled(text)


def _parsed(*args: str) -> dict[str, Any]:
    return controller_manager.make_context("controller-manager", list(args)).params


def test_flags_as_go_programs_take_them() -> None:
    given = _parsed("--leader-elect=false", "--min_resync_period", "1h30m", "-v=4", "--kube-api-qps", "50", "--port=0")
    assert given["leader_elect"] is False
    assert given["min_resync_period"].seconds == 5400
    assert (given["v"], given["kube_api_qps"], given["port"]) == (4, 50.0, 0)
    assert _parsed("--leader-elect")["leader_elect"] is True
    assert set(_parsed()) >= {name.replace("-", "_") for name in FLAGS}


@pytest.mark.parametrize(
    "args", [["--leader-elect=perhaps"], ["--port=70000"], ["--min-resync-period=5"], ["--unknown"], ["extra"]]
)
def test_flags_that_are_refused(args: list[str]) -> None:
    with pytest.raises(click.UsageError):
        _parsed(*args)
