"""Deployments that wait for the node proxies, from end to end in virtual time: nothing is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from kubeproxy.commands.rollout.command import Rollout
from kubeproxy.controllers.deployments.controller import DeploymentController
from kubeproxy.controllers.deployments.drain_plan import OPT_IN
from kubeproxy.controllers.proxy_requests.deployment_drains import COST, MARK, REST_S
from kubeproxy.controllers.proxy_requests.requests import LIFETIME_S
from kubeproxy.controllers.proxy_requests.timeouts import DRAIN_TIMEOUT, USE_TIMEOUT
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.model.drain_request import REQUESTS
from tests.controllers.api import Json
from tests.controllers.cluster import Cluster, is_complete, running
from tests.controllers.invariants import Availability, Invariants
from tests.controllers.proxies import Proxies, expose, requests_on
from tests.controllers.virtual_time import run, unix_time

Scenario = Callable[[Cluster, Proxies], Awaitable[None]]


@asynccontextmanager
async def stage(
    *,
    nodes: int = 3,
    replicas: int = 6,
    annotations: dict[str, str] | None = None,
    exposed: bool = True,
    **spec: Any,
) -> AsyncIterator[tuple[Cluster, Proxies]]:
    """A Deployment that has been rolled out, with controllers that run and node proxies that report."""
    cluster = Cluster()
    invariants = Invariants(cluster.api)
    if exposed:
        expose(cluster.api)
    proxies = Proxies(cluster.api, nodes)
    async with running(cluster.api, cluster.recorded):
        cluster.deploy(replicas=replicas, progressDeadlineSeconds=120, **spec)
        opted = {OPT_IN: "true"} if annotations is None else annotations
        cluster.api.patch("deployments", "default", "web", {"metadata": {"annotations": opted}})
        await cluster.complete()
        await asyncio.sleep(10)
        yield cluster, proxies
        proxies.close()
    invariants.check()


def play(scenario: Scenario, **options: object) -> None:
    async def whole() -> None:
        async with stage(**options) as (cluster, proxies):  # type: ignore[arg-type]
            await scenario(cluster, proxies)

    run(whole())


def reasons(cluster: Cluster) -> set[str]:
    return {reason for reason, _ in cluster.recorded.of("Deployment")}


def draining(cluster: Cluster) -> list[str]:
    return [
        pod["metadata"]["name"] for pod in cluster.api.all("pods") if MARK in pod["metadata"].get("annotations", {})
    ]


def in_use(proxies: Proxies) -> int:
    """Endpoints that the node with the fewest has."""
    return min(len(served) for node, served in proxies.served.items() if node not in proxies.gone)


@pytest.mark.parametrize(
    ("surge", "unavailable", "replicas"),
    [("25%", "25%", 10), (1, 0, 3), (0, 1, 3), (1, 0, 1), ("100%", 0, 4), (3, 2, 10)],
)
def test_rollout_loses_neither_new_nor_open_connections(
    surge: int | str, unavailable: int | str, replicas: int
) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        seen = Availability(cluster.api)
        seen.begin()
        fewest = replicas
        cluster.set_image("web:2")
        while not is_complete(cluster.deployment()):
            fewest = min(fewest, in_use(proxies))
            await asyncio.sleep(0.1)
        allowed = cluster.deployment()["spec"]["strategy"]["rollingUpdate"]
        least = replicas - (allowed["maxUnavailable"] if isinstance(allowed["maxUnavailable"], int) else replicas // 4)
        assert not proxies.lost, "no node sends a new connection to a pod that ends"
        assert not proxies.cut, "no open connection is cut"
        assert seen.fewest is not None
        assert min(seen.fewest, fewest) >= least, "enough pods are in use on every node"
        assert "ProxiesNotFollowing" not in reasons(cluster)
        assert "DrainTimedOut" not in reasons(cluster)

    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    play(scenario, replicas=replicas, strategy=strategy)


def test_without_the_annotation_the_same_rollout_loses_connections() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.set_image("web:2")
        await cluster.complete()
        assert sum(proxies.lost.values()) == 6
        assert sum(proxies.cut.values()) == 6
        assert requests_on(cluster.api) == []
        assert reasons(cluster) == {"ScalingReplicaSet"}

    play(scenario, annotations={})


def test_without_proxies_the_rollout_is_as_upstream() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        cluster.set_image("web:2")
        await cluster.complete()
        assert loop.time() - begun < 30
        assert reasons(cluster) == {"ScalingReplicaSet"}

    play(scenario, nodes=0)


def test_pods_that_no_service_selects_are_not_waited_for() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        cluster.set_image("web:2")
        await cluster.complete()
        assert loop.time() - begun < 30

    play(scenario, exposed=False)


def test_nothing_is_left_and_nothing_is_written_afterwards() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.set_image("web:2")
        await cluster.complete()
        await asyncio.sleep(LIFETIME_S + 5)
        assert REQUESTS not in cluster.api.get("services", "web")["metadata"]["annotations"]
        assert draining(cluster) == []
        assert cluster.condition("ProxiesFollowed") is None
        writes = cluster.api.writes
        await asyncio.sleep(3600)
        assert cluster.api.writes == writes

    play(scenario)


def test_node_that_does_not_follow_is_named_and_delays_the_rollout_only_until_its_time_out() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.stuck.add("node-1")
        cluster.set_image("web:2")
        await cluster.until(lambda: cluster.condition("ProxiesFollowed") is not None)
        condition = cluster.condition("ProxiesFollowed") or {}
        assert (condition["status"], condition["reason"]) == ("False", "WaitingForProxies")
        assert "the proxies of 1 node (node-1) have not followed" in condition["message"]
        await cluster.complete()
        texts = [message for reason, message in cluster.recorded.of("Deployment") if reason == "ProxiesNotFollowing"]
        assert texts
        assert all("1 node (node-1)" in text for text in texts)
        assert "ProgressDeadlineExceeded" not in {
            each["reason"] for each in cluster.deployment()["status"]["conditions"]
        }
        await asyncio.sleep(10)
        assert cluster.condition("ProxiesFollowed") is None

    play(scenario, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "20s", USE_TIMEOUT: "20s"})


def test_explain_names_the_pod_the_node_and_the_end_of_the_wait() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        said: list[str] = []
        rollout = Rollout(cast(Client, cluster.api), "default", "web", said.append, clock=unix_time)
        proxies.stuck.add("node-1")
        cluster.set_image("web:2")
        await cluster.until(lambda: cluster.condition("ProxiesFollowed") is not None)
        await rollout.explain()
        assert re.search(
            r"It waits for \d+s: pod web-\S+ is ready, but the proxies of 1 node \(node-1\) do not use it; it counts in"
            r" \d+ s in any case( \(and \d more\))?\. To go on: read kubeproxy's log and status on these nodes, or"
            r" lower kubeproxy/use-timeout\.",
            said[-1],
        ), said
        proxies.stuck.clear()
        proxies.connection_s = 10_000.0
        await cluster.until(lambda: draining(cluster))
        await asyncio.sleep(5)
        await rollout.explain()
        assert re.search(
            r"pod web-\S+ drains: 2 connections from 1 node \(node-0\) are open; it goes in \d+ s in any case", said[-1]
        ), said
        await cluster.complete()
        await rollout.explain()
        assert said[-1] == 'Deployment "web" is rolled out: 6 of 6 pods are new and available.'

    play(scenario)


def test_node_that_has_died_is_not_waited_for() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.gone.add("node-1")
        await asyncio.sleep(200)
        cluster.set_image("web:2")
        await cluster.complete()
        assert not proxies.lost
        assert "ProxiesNotFollowing" not in reasons(cluster)

    play(scenario)


def test_long_connections_are_cut_at_the_time_out_and_not_before() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        loop = asyncio.get_running_loop()
        proxies.connection_s = 10_000.0
        begun: dict[str, float] = {}
        ended: dict[str, float] = {}

        def watch(write: object) -> None:
            for pod in cluster.api.all("pods"):
                name = pod["metadata"]["name"]
                if MARK in pod["metadata"].get("annotations", {}):
                    begun.setdefault(name, loop.time())
                if "deletionTimestamp" in pod["metadata"]:
                    ended.setdefault(name, loop.time() - begun[name])

        cluster.api.observers.append(watch)
        cluster.set_image("web:2")
        await cluster.complete()
        assert len(ended) == 6
        assert min(ended.values()) >= 25
        assert not proxies.lost
        assert sum(proxies.cut.values()) == 6
        cut = [message for reason, message in cluster.recorded.of("Deployment") if reason == "DrainTimedOut"]
        assert len(cut) == 6
        assert all("with 2 open connections" in text for text in cut)

    play(scenario, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "25s"})


def test_drain_longer_than_the_progress_deadline_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[str] = []
    sync = DeploymentController.sync

    async def counted(controller: DeploymentController, key: str) -> None:
        syncs.append(key)
        await sync(controller, key)

    monkeypatch.setattr(DeploymentController, "sync", counted)

    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.connection_s = 10_000.0
        failed: list[str] = []

        def watch(write: object) -> None:
            condition = cluster.condition("Progressing") or {}
            if condition.get("reason") == "ProgressDeadlineExceeded":
                failed.append(condition["message"])

        cluster.api.observers.append(watch)
        cluster.set_image("web:2")
        await cluster.complete()
        assert failed == []
        assert len(syncs) < 2 * asyncio.get_running_loop().time(), "it looks about once a second, whatever the deadline"

    play(scenario, replicas=2, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "5m"})


def test_undo_puts_draining_pods_back_at_once() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.connection_s = 10_000.0
        costly = cluster.api.all("pods")[0]["metadata"]["name"]
        cluster.api.patch("pods", "default", costly, {"metadata": {"annotations": {COST: "5"}}})
        before = {pod["metadata"]["name"] for pod in cluster.api.all("pods")}
        cluster.set_image("web:2")
        await cluster.until(lambda: draining(cluster))
        await asyncio.sleep(5)
        cluster.set_image("web:1")
        await cluster.until(lambda: not draining(cluster), within_s=10)
        await asyncio.sleep(2)
        names = {
            pod["metadata"]["name"] for pod in cluster.api.all("pods") if "deletionTimestamp" not in pod["metadata"]
        }
        assert before <= names, "no pod of the wanted template was lost"
        assert [pod for pod, want in requests_on(cluster.api) if want == "drain" and pod in before] == []
        kept = cluster.api.get("pods", costly)["metadata"]["annotations"]
        assert kept == {COST: "5"}, "with the cost that it had"
        await cluster.complete()

    play(scenario)


@pytest.mark.parametrize(
    "change", [{"spec": {"paused": True}}, {"metadata": {"annotations": {OPT_IN: None}}}], ids=["paused", "opted out"]
)
def test_pods_do_not_go_on_draining_while_no_rollout_takes_them(change: Json) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.connection_s = 10_000.0
        cluster.set_image("web:2")
        await cluster.until(lambda: draining(cluster))
        cluster.api.patch("deployments", "default", "web", change)
        await cluster.until(lambda: not draining(cluster), within_s=10)
        cluster.edit({"paused": False})
        await cluster.complete()

    play(scenario, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "40s"})


def test_proxies_that_stop_reporting_end_the_drain_as_upstream_would() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.connection_s = 10_000.0
        cluster.set_image("web:2")
        await cluster.until(lambda: draining(cluster))
        proxies.gone |= {"node-0", "node-1", "node-2"}
        await cluster.complete()

    play(scenario, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "10m"})


def test_unusable_options_are_reported_and_ignored() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.set_image("web:2")
        await cluster.complete()
        assert (
            "InvalidDrainOptions",
            "annotation kubeproxy/drain-timeout: found 'soon'; allowed is a duration such as 30s or 1m30s;"
            " proxies are not waited for",
        ) in cluster.recorded.of("Deployment")

    play(scenario, annotations={OPT_IN: "true", DRAIN_TIMEOUT: "soon"})


def test_controllers_that_may_not_read_reports_go_on_without_proxies_and_report_that() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.forbid_reports()
        expose(cluster.api)
        async with running(cluster.api, cluster.recorded, wait_for_reports=False):
            cluster.deploy(replicas=2)
            cluster.api.patch("deployments", "default", "web", {"metadata": {"annotations": {OPT_IN: "true"}}})
            await cluster.complete()
            cluster.set_image("web:2")
            await cluster.complete()
        texts = [text for reason, text in cluster.recorded.of("Deployment") if reason == "ProxiesUnknown"]
        assert texts == ["Services or drain reports cannot be read; proxies are not waited for"]

    run(scenario())


def _refusing(resource: str, code: int, reason: str) -> Callable[[str, str, Json], Exception | None]:
    """Patches of a resource are answered with this error."""

    def refuse(verb: str, of: str, body: Json) -> Exception | None:
        if (verb, of) != ("patch", resource):
            return None
        return status_error(Status(reason=reason, message="not this one"), code=code, seen="the server answered")

    return refuse


@pytest.mark.parametrize("draining_already", [False, True])
@pytest.mark.parametrize("resource", ["services", "pods"])
@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (500, "InternalError")])
def test_proxies_that_cannot_be_asked_are_not_waited_for(
    resource: str, code: int, reason: str, draining_already: bool
) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        seen = Availability(cluster.api)
        seen.begin()
        if draining_already:
            cluster.set_image("web:2")
            await cluster.until(lambda: bool(draining(cluster)))
        cluster.api.refuse = _refusing(resource, code, reason)
        cluster.set_image("web:3")
        async with asyncio.timeout(300):
            await cluster.complete()
        texts = [text for reason, text in cluster.recorded.of("Deployment") if reason == "ProxiesUnknown"]
        assert texts == ["the proxies cannot be asked: not this one; proxies are not waited for"]
        assert seen.fewest is not None
        assert seen.fewest >= 5
        cluster.api.refuse = lambda verb, resource, body: None
        cluster.set_image("web:4")
        await cluster.complete()
        await asyncio.sleep(LIFETIME_S + 10)
        assert requests_on(cluster.api) == []
        assert draining(cluster) == []

    play(scenario)


def test_server_that_fails_for_a_moment_is_no_reason_to_do_without_proxies() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.set_image("web:2")
        await cluster.until(lambda: bool(draining(cluster)))
        cluster.api.refuse = _refusing("services", 500, "InternalError")
        await asyncio.sleep(10)
        cluster.api.refuse = lambda verb, resource, body: None
        await cluster.complete()
        assert "ProxiesUnknown" not in reasons(cluster)
        assert not proxies.lost
        assert not proxies.cut

    play(scenario)


def test_rollout_that_did_without_proxies_asks_them_again_after_a_while() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.api.refuse = _refusing("services", 403, "Forbidden")
        cluster.set_image("web:2")
        await cluster.complete()
        cluster.api.refuse = lambda verb, resource, body: None
        await asyncio.sleep(REST_S)
        proxies.lost.clear()
        proxies.cut.clear()
        cluster.set_image("web:3")
        await cluster.complete()
        assert not proxies.lost
        assert not proxies.cut

    play(scenario)


def test_broken_image_keeps_old_pods_in_use() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.set_image("broken")
        await cluster.until(lambda: (cluster.condition("Progressing") or {})["reason"] == "ProgressDeadlineExceeded")
        assert in_use(proxies) >= 5
        assert not proxies.lost
        cluster.set_image("web:1")
        await cluster.complete()
        assert not proxies.lost

    play(scenario)


@pytest.mark.parametrize("every", [2, 3, 5, 7])
def test_controllers_that_are_killed_between_any_two_writes_go_on(every: int) -> None:
    """Each start of the controllers lives for so many writes."""

    async def scenario() -> None:
        cluster = Cluster()
        invariants = Invariants(cluster.api)
        expose(cluster.api)
        proxies = Proxies(cluster.api, 3)
        cluster.deploy(replicas=4)
        cluster.api.patch("deployments", "default", "web", {"metadata": {"annotations": {OPT_IN: "true"}}})
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
            await asyncio.sleep(10)
        cluster.set_image("web:2")
        starts = 0
        while not is_complete(cluster.deployment()):
            left = every
            dead = asyncio.Event()

            def refuse(verb: str, resource: str, body: Json, dead: asyncio.Event = dead) -> Exception | None:
                nonlocal left
                left -= resource != "events"
                if left < 0:
                    dead.set()
                    return UnreachableError("killed", cause="cut")
                return None

            cluster.api.refuse = refuse
            async with running(cluster.api, cluster.recorded):
                deadline = asyncio.get_running_loop().time() + 60
                while not dead.is_set() and not is_complete(cluster.deployment()):
                    if asyncio.get_running_loop().time() > deadline:
                        break
                    await asyncio.sleep(0.05)
            starts += 1
            assert starts < 400
        cluster.api.refuse = lambda verb, resource, body: None
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
            await asyncio.sleep(LIFETIME_S + 10)
        assert starts > 3
        assert not proxies.lost
        assert not proxies.cut
        assert draining(cluster) == []
        invariants.check()
        proxies.close()

    run(scenario())


def test_conflicts_on_every_second_write_change_nothing() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        count = 0

        def touch(verb: str, resource: str, body: Json) -> Exception | None:
            nonlocal count
            count += 1
            if verb == "patch" and resource in ("services", "replicasets", "deployments") and count % 2:
                for (of, where, name), item in list(cluster.api.objects.items()):
                    if of == resource:
                        labels = {"touched": str(count), **item["metadata"].get("labels", {})}
                        labels["touched"] = str(count)
                        if of != "replicasets":
                            cluster.api.patch(of, where, name, {"metadata": {"labels": labels}})
            return None

        cluster.api.refuse = touch
        cluster.set_image("web:2")
        await cluster.complete()
        assert not proxies.lost
        assert not proxies.cut

    play(scenario)
