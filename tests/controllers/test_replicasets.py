"""ReplicaSets and ReplicationControllers from end to end: adoption, quotas, bursts."""

from __future__ import annotations

import asyncio
from typing import Any

from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.errors import ForbiddenError
from kubeproxy.kubernetes.client.status import status_error
from tests.controllers.cluster import Cluster, Controllers, pod_template, running
from tests.controllers.scenario import play_out
from tests.controllers.virtual_time import run


def test_orphans_are_adopted_and_strangers_released() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        (replica_set,) = cluster.replica_sets().values()
        pods = cluster.api.all("pods")
        # A pod that loses its label is released, and replaced.
        name = pods[0]["metadata"]["name"]
        cluster.api.patch("pods", "default", name, {"metadata": {"labels": {"pod-template-hash": "other"}}})
        await cluster.quiet(controllers)
        assert cluster.api.get("pods", name)["metadata"]["ownerReferences"] == []
        assert len(cluster.api.all("pods")) == 4
        # It gets it back: it is adopted, and one too many goes.
        value = replica_set["metadata"]["labels"]["pod-template-hash"]
        cluster.api.patch("pods", "default", name, {"metadata": {"labels": {"pod-template-hash": value}}})
        await cluster.quiet(controllers)
        assert len(cluster.api.all("pods")) == 3
        # A ReplicaSet without an owner is adopted by the Deployment.
        orphaned = replica_set["metadata"]["name"]
        cluster.api.patch("replicasets", "default", orphaned, {"metadata": {"ownerReferences": []}})
        await cluster.quiet(controllers)
        (owner,) = cluster.api.get("replicasets", orphaned)["metadata"]["ownerReferences"]
        assert owner["uid"] == cluster.deployment()["metadata"]["uid"]
        assert len(cluster.api.all("replicasets")) == 1

    play_out(scenario)


def test_pods_that_are_deleted_come_again() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        before = {pod["metadata"]["name"] for pod in cluster.api.all("pods")}
        for name in list(before)[:2]:
            cluster.api.delete("pods", "default", name)
        await cluster.complete()
        await cluster.quiet(controllers)
        after = {pod["metadata"]["name"] for pod in cluster.api.all("pods")}
        assert len(after) == 3
        assert len(after & before) == 1

    play_out(scenario)


def test_pods_that_came_and_went_unseen_are_replaced_at_once() -> None:
    """They are created and gone between two lists: no event ever reports them, and none is waited for."""

    async def play() -> None:
        cluster = Cluster()
        cluster.deploy()
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            cluster.api.watch_delay_s = lambda: 1.0
            cluster.edit({"replicas": 6})
            await cluster.until(lambda: len(cluster.api.all("pods")) == 6)
            for pod in cluster.api.all("pods")[3:]:
                cluster.api.remove("pods", "default", pod["metadata"]["name"])
            cluster.api.cut_watches(expire=True)
            cluster.api.watch_delay_s = lambda: 0.0
            await cluster.until(lambda: len(cluster.api.all("pods")) == 6, within_s=60)
            await cluster.complete()
            await cluster.quiet(controllers)

    run(play())


def test_a_pod_that_is_given_away_while_it_is_deleted_is_not_awaited() -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.kubelet.stop_s = 1000.0
        cluster.deploy()
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
            cluster.api.watch_delay_s = lambda: 1.0
            cluster.edit({"replicas": 2})
            await cluster.until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in cluster.api.all("pods")))
            for pod in cluster.api.all("pods"):
                if "deletionTimestamp" in pod["metadata"]:
                    name = pod["metadata"]["name"]
                    cluster.api.patch("pods", "default", name, {"metadata": {"ownerReferences": []}})
            cluster.api.cut_watches(expire=True)
            cluster.api.watch_delay_s = lambda: 0.0
            cluster.edit({"replicas": 5})
            await cluster.until(lambda: len(cluster.api.all("pods")) == 6, within_s=60)

    run(play())


def test_a_quota_that_refuses_everything_costs_one_request() -> None:
    async def play() -> None:
        cluster = Cluster()
        quota = ForbiddenError("https://api/pods answered 403: exceeded quota: pods", cause="forbidden", status=403)
        quota.server_text = "exceeded quota: pods"
        cluster.api.refuse = lambda verb, resource, body: quota if (verb, resource) == ("create", "pods") else None
        cluster.deploy(replicas=50)
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.until(lambda: cluster.condition("ReplicaFailure"))
            await asyncio.sleep(1)
            tries = controllers.replica_sets.controller.errors
            assert cluster.api.requests["create pods"] == tries  # one a sync
            failure = cluster.condition("ReplicaFailure") or {}
            assert (failure["reason"], failure["message"]) == ("FailedCreate", "exceeded quota: pods")
            assert ("FailedCreate", "Error creating: exceeded quota: pods") in cluster.recorded.of("ReplicaSet")
            cluster.api.refuse = lambda verb, resource, body: None
            await cluster.complete()
            await cluster.quiet(controllers)
            assert cluster.condition("ReplicaFailure") is None

    run(play())


def test_a_pod_with_a_name_that_another_has_by_now_is_no_failed_deletion() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        text = "Precondition failed: UID in precondition: a, UID in object meta: b"
        gone = status_error(Status(reason="Conflict", message=text), code=409, seen="https://api/pods answered 409")
        cluster.api.refuse = lambda verb, resource, body: gone if (verb, resource) == ("delete", "pods") else None
        before = controllers.replica_sets.controller.errors
        cluster.edit({"replicas": 2})
        await cluster.until(lambda: cluster.api.requests["delete pods"] > 0)
        await asyncio.sleep(5)
        assert controllers.replica_sets.controller.errors == before
        assert "FailedDelete" not in {reason for reason, _ in cluster.recorded.of("ReplicaSet")}
        cluster.api.refuse = lambda verb, resource, body: None
        controllers.resync()
        await cluster.complete()

    play_out(scenario, replicas=3)


def test_a_replica_set_that_is_being_deleted_gets_no_pods() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        (replica_set,) = cluster.replica_sets().values()
        ending = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/keep"]}}
        cluster.api.patch("replicasets", "default", replica_set["metadata"]["name"], ending)
        await cluster.quiet(controllers)
        made = cluster.api.requests["create pods"]
        cluster.api.delete("pods", "default", cluster.api.all("pods")[0]["metadata"]["name"])
        await cluster.quiet(controllers)
        assert cluster.api.requests["create pods"] == made

    play_out(scenario)


def test_a_webhook_that_refuses_deletions_as_a_conflict_is_reported_and_asked_again() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        text = 'admission webhook "pods.example.com" denied the request'
        denied = status_error(Status(reason="Conflict", message=text), code=409, seen="https://api/pods answered 409")
        cluster.api.refuse = lambda verb, resource, body: denied if (verb, resource) == ("delete", "pods") else None
        cluster.edit({"replicas": 1})
        await cluster.until(lambda: cluster.condition("ReplicaFailure"))
        assert ("FailedDelete", f"Error deleting: {text}") in cluster.recorded.of("ReplicaSet")
        cluster.api.refuse = lambda verb, resource, body: None
        await cluster.complete()

    play_out(scenario, replicas=3)


def test_a_server_that_does_not_count_terminating_pods() -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.api.serves_terminating = False
        cluster.deploy()
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            cluster.set_image("web:2")
            await cluster.complete()
            await cluster.quiet(controllers)
            before = cluster.api.writes
            controllers.resync()
            await asyncio.sleep(60)
            assert cluster.api.writes == before
            assert "terminatingReplicas" not in cluster.deployment()["status"]
        requests = dict(cluster.api.requests)
        async with running(cluster.api, cluster.recorded):  # a new process does not know what the server serves
            await asyncio.sleep(60)
            sent = {key: times - requests.get(key, 0) for key, times in cluster.api.requests.items()}
            assert not [key for key, times in sent.items() if times and key.split()[0] not in ("list", "watch")]

    run(play())


def test_bursts_come_in_rounds() -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.deploy(replicas=35)
        async with running(cluster.api, cluster.recorded, burst=10) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            assert cluster.api.requests["create pods"] == 35
            cluster.edit({"replicas": 2})
            await cluster.complete()
            await cluster.quiet(controllers)
            assert cluster.api.requests["delete pods"] == 33

    run(play())


def test_a_replication_controller() -> None:
    async def play() -> None:
        cluster = Cluster()
        item = {
            "metadata": {"name": "rc"},
            "spec": {"replicas": 4, "selector": {"app": "rc"}, "template": pod_template(labels={"app": "rc"})},
        }
        cluster.api.create("replicationcontrollers", "default", item)
        async with running(cluster.api, cluster.recorded) as controllers:

            def status() -> Any:
                return cluster.api.get("replicationcontrollers", "rc")["status"]

            await cluster.until(lambda: status().get("availableReplicas") == 4)
            await cluster.quiet(controllers)
            (owner,) = cluster.api.all("pods")[0]["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["apiVersion"], owner["controller"]) == ("ReplicationController", "v1", True)
            assert "terminatingReplicas" not in status()
            cluster.api.patch("replicationcontrollers", "default", "rc", {"spec": {"replicas": 1}})
            await cluster.until(lambda: status().get("replicas") == 1)
            await cluster.quiet(controllers)
            assert len(cluster.api.all("pods")) == 1
            assert status()["observedGeneration"] == 2
            assert (
                len([1 for reason, _ in cluster.recorded.of("ReplicationController") if reason == "SuccessfulDelete"])
                == 3
            )

    run(play())
