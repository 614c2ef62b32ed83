"""Deployments from end to end: our controllers, an API server in memory, virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kubeproxy.controllers import template
from kubeproxy.controllers.deployments.revisions import DESIRED_REPLICAS, ROLLBACK_TO
from kubeproxy.kubernetes.client.errors import UnreachableError
from tests.controllers.cluster import Cluster, Controllers, pod_template, running
from tests.controllers.invariants import Availability, Invariants
from tests.controllers.scenario import play_out
from tests.controllers.virtual_time import run


def test_a_deployment_gets_a_replica_set_and_its_pods() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        (replica_set,) = cluster.replica_sets().values()
        wanted = cluster.deployment()
        assert replica_set["spec"]["template"]["spec"] == wanted["spec"]["template"]["spec"]
        value = replica_set["metadata"]["labels"]["pod-template-hash"]
        assert replica_set["metadata"]["name"] == f"web-{value}"
        assert replica_set["spec"]["selector"] == {"matchLabels": {"app": "web", "pod-template-hash": value}}
        assert replica_set["metadata"]["annotations"] == {
            "team": "a",
            "deployment.kubernetes.io/revision": "1",
            "deployment.kubernetes.io/desired-replicas": "3",
            "deployment.kubernetes.io/max-replicas": "4",
        }
        assert replica_set["status"]["fullyLabeledReplicas"] == 3
        pods = cluster.api.all("pods")
        assert len(pods) == 3
        assert all(pod["spec"]["unknownField"] == {"kept": [1, None, {}]} for pod in pods)
        assert wanted["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
        reasons = [(each["type"], each["status"], each["reason"]) for each in wanted["status"]["conditions"]]
        assert sorted(reasons) == [
            ("Available", "True", "MinimumReplicasAvailable"),
            ("Progressing", "True", "NewReplicaSetAvailable"),
        ]
        name = replica_set["metadata"]["name"]
        assert cluster.recorded.of("Deployment") == [("ScalingReplicaSet", f"Scaled up replica set {name} from 0 to 3")]
        created = {f"Created pod: {pod['metadata']['name']}" for pod in pods}
        assert {message for _, message in cluster.recorded.of("ReplicaSet")} == created
        assert controllers.errors == 0

    play_out(scenario)


def test_a_rolling_update_keeps_its_promises() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        seen = Availability(cluster.api)
        seen.begin()
        cluster.set_image("web:2")
        await cluster.complete()
        assert cluster.sizes() == {"1": 0, "2": 10}
        assert seen.fewest == 8
        assert seen.most <= 13
        steps = [message for _, message in cluster.recorded.of("Deployment")]
        assert steps[1].endswith("from 0 to 3")
        assert steps[2].endswith("from 10 to 8")

    play_out(scenario, replicas=10)


def test_a_broken_image_stops_the_rollout_and_times_out() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.set_image("broken")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await cluster.until(lambda: (cluster.condition("Progressing") or {})["status"] == "False")
        assert 60 < loop.time() - begun < 65
        assert cluster.sizes() == {"1": 8, "2": 5}
        assert (cluster.condition("Progressing") or {})["reason"] == "ProgressDeadlineExceeded"
        assert (cluster.condition("Available") or {})["status"] == "True"
        cluster.set_image("web:1")  # back
        await cluster.complete()
        assert cluster.sizes() == {"3": 10, "2": 0}
        replica_set = cluster.replica_sets()["3"]
        assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"] == "1"
        assert (cluster.condition("Progressing") or {})["reason"] == "NewReplicaSetAvailable"

    play_out(scenario, replicas=10, progressDeadlineSeconds=60)


def test_a_third_template_in_the_middle() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        seen = Availability(cluster.api)
        seen.begin()
        cluster.set_image("broken")
        await asyncio.sleep(20)
        assert cluster.sizes() == {"1": 8, "2": 5}
        cluster.set_image("web:3")
        await cluster.complete()
        assert cluster.sizes() == {"1": 0, "2": 0, "3": 10}
        assert seen.fewest == 8
        assert seen.most <= 13

    play_out(scenario, replicas=10)


def test_recreate_never_runs_both() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        def images() -> set[str]:
            return {pod["spec"]["containers"][0]["image"] for pod in cluster.api.all("pods")}

        cluster.api.observers.append(lambda write: mixed.append(images()) if len(images()) > 1 else None)
        mixed: list[set[str]] = []
        cluster.kubelet.stop_s = 20
        cluster.set_image("web:2")
        await cluster.complete()
        assert images() == {"web:2"}
        assert not mixed
        assert cluster.sizes() == {"1": 0, "2": 4}

    play_out(scenario, replicas=4, strategy={"type": "Recreate"})


def test_a_rollout_goes_on_at_once_when_its_strategy_becomes_recreate() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.api.serves_terminating = False  # otherwise their number is an event, too
        cluster.kubelet.stop_s = 20
        cluster.set_image("web:2")
        await cluster.until(lambda: cluster.sizes().get("2", 0) > 0)
        cluster.edit({"strategy": {"type": "Recreate", "rollingUpdate": None}})
        async with asyncio.timeout(60):
            await cluster.complete()
        assert cluster.sizes() == {"1": 0, "2": 4}

    play_out(scenario, replicas=4)


def test_scaling_in_the_middle_is_proportional() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.set_image("broken")
        await asyncio.sleep(20)
        assert cluster.sizes() == {"1": 8, "2": 5}
        cluster.edit({"replicas": 20})
        await cluster.quiet(controllers)
        sizes = cluster.sizes()
        assert sum(sizes.values()) == 25
        assert sizes["1"] > sizes["2"] > 5
        cluster.set_image("web:1")
        await cluster.complete()

    play_out(scenario, replicas=10)


@pytest.mark.parametrize("noted", ["7", "-1", "99999999999"])
def test_a_size_that_was_noted_wrongly_does_not_stop_later_rollouts(noted: str) -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        (replica_set,) = cluster.api.all("replicasets")
        wrong = {"metadata": {"annotations": {DESIRED_REPLICAS: noted}}}
        cluster.api.patch("replicasets", "default", replica_set["metadata"]["name"], wrong)
        cluster.set_image("web:2")
        await cluster.complete()
        assert cluster.sizes() == {"1": 0, "2": 3}

    play_out(scenario, replicas=3)


def test_pause_and_resume() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.edit({"paused": True})
        cluster.set_image("web:2")
        await cluster.quiet(controllers)
        assert cluster.sizes() == {"1": 3}
        condition = cluster.condition("Progressing") or {}
        assert (condition["status"], condition["reason"]) == ("Unknown", "DeploymentPaused")
        cluster.edit({"replicas": 5})  # a paused Deployment is scaled, but not rolled out
        await cluster.quiet(controllers)
        assert cluster.sizes() == {"1": 5}
        cluster.edit({"paused": False})
        await cluster.complete()
        assert cluster.sizes() == {"1": 0, "2": 5}

    play_out(scenario)


def test_min_ready_seconds_are_waited_for() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        cluster.set_image("web:2")
        await cluster.complete()
        assert loop.time() - begun >= 3 * 20
        assert controllers.errors < 10
        cluster.edit({"minReadySeconds": 5})
        await cluster.quiet(controllers)
        assert cluster.replica_sets()["2"]["spec"]["minReadySeconds"] == 5

    play_out(scenario, minReadySeconds=20)


@pytest.mark.parametrize(("wanted", "image"), [("0", "web:2"), ("1", "web:1")])
def test_rollback_by_annotation(wanted: str, image: str) -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        for number in (2, 3):
            cluster.set_image(f"web:{number}")
            await cluster.complete()
        cluster.api.patch(
            "deployments",
            "default",
            "web",
            {"metadata": {"annotations": {"deprecated.deployment.rollback.to": wanted}}},
        )
        await cluster.quiet(controllers)
        found = cluster.deployment()
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == image
        assert "pod-template-hash" not in found["spec"]["template"]["metadata"]["labels"]
        assert "deprecated.deployment.rollback.to" not in found["metadata"]["annotations"]
        assert found["metadata"]["annotations"]["team"] == "a"
        assert found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "4"
        done = [message for reason, message in cluster.recorded.of("Deployment") if reason == "DeploymentRollback"]
        assert done == [f'Rolled back deployment "web" to revision {2 if wanted == "0" else 1}']

    play_out(scenario)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("99", "DeploymentRollbackRevisionNotFound"), ("1", "DeploymentRollbackTemplateUnchanged")],
)
def test_a_rollback_that_cannot_be(wanted: str, reason: str) -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        asked = {"metadata": {"annotations": {"deprecated.deployment.rollback.to": wanted}}}
        cluster.api.patch("deployments", "default", "web", asked)
        await cluster.quiet(controllers)
        assert [each for each, _ in cluster.recorded.of("Deployment")][-1] == reason
        assert "deprecated.deployment.rollback.to" not in cluster.deployment()["metadata"]["annotations"]
        assert cluster.sizes() == {"1": 3}

    play_out(scenario)


def test_old_replica_sets_are_cleaned_up() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        for number in range(2, 7):
            cluster.set_image(f"web:{number}")
            await cluster.complete()
            await cluster.quiet(controllers)
        assert sorted(cluster.sizes()) == ["4", "5", "6"]

    play_out(scenario, revisionHistoryLimit=2)


def test_a_hash_collision_takes_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = template.template_hash

    def colliding(raw: Any, collisions: int | None) -> str:
        return real(raw, collisions) if collisions else "same"

    monkeypatch.setattr(template, "template_hash", colliding)

    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        assert next(iter(cluster.replica_sets().values()))["metadata"]["name"] == "web-same"
        cluster.set_image("web:2")
        await cluster.complete()
        assert cluster.deployment()["status"]["collisionCount"] == 1
        assert cluster.sizes() == {"1": 0, "2": 3}

    play_out(scenario)


def test_a_replica_set_that_the_cache_does_not_know_is_used() -> None:
    """The answer to its creation is lost, and the cache is late: the next try finds it instead of making a second."""

    async def play() -> None:
        cluster = Cluster()
        invariants = Invariants(cluster.api)
        lost: list[bool] = []

        def lose(verb: str, resource: str) -> Exception | None:
            if (verb, resource) == ("create", "replicasets") and not lost:
                lost.append(True)
                return UnreachableError("the answer was lost", cause="cut")
            return None

        cluster.api.lose = lose
        cluster.api.watch_delay_s = lambda: 3.0
        cluster.deploy()
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            assert len(cluster.api.all("replicasets")) == 1
            assert "collisionCount" not in cluster.deployment()["status"]
        invariants.check()

    run(play())


def test_a_paused_deployment_that_is_to_go_back_keeps_its_revisions() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.set_image("web:2")
        await cluster.complete()
        change = {"spec": {"paused": True, "revisionHistoryLimit": 0}}
        asked = {"metadata": {"annotations": {ROLLBACK_TO: "1"}}}
        cluster.api.patch("deployments", "default", "web", change | asked)
        await cluster.quiet(controllers)
        assert set(cluster.sizes()) == {"1", "2"}
        cluster.edit({"paused": False})
        await cluster.complete()
        assert cluster.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "web:1"

    play_out(scenario)


def test_a_server_that_is_away_is_no_event() -> None:
    async def play() -> None:
        cluster = Cluster()
        away = UnreachableError("connection refused", cause="refused")
        cluster.api.refuse = lambda verb, resource, body: (
            away if (verb, resource) == ("create", "replicasets") else None
        )
        cluster.deploy()
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.until(lambda: controllers.errors > 3)
            cluster.api.refuse = lambda verb, resource, body: None
            await cluster.complete()
        assert {reason for reason, _ in cluster.recorded.of("Deployment")} == {"ScalingReplicaSet"}

    run(play())


def test_a_replica_set_of_another_owner_is_not_used_though_its_name_and_template_fit() -> None:
    """That of a Deployment of the same name that was deleted, and is not collected yet."""

    async def play() -> None:
        cluster = Cluster()
        cluster.deploy()
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
        (before,) = cluster.api.all("replicasets")
        cluster.api.remove("deployments", "default", "web")
        await asyncio.sleep(60)
        cluster.api.create("replicasets", "default", before)
        cluster.deploy()
        async with running(cluster.api, cluster.recorded):
            await cluster.complete()
        assert cluster.deployment()["status"]["collisionCount"] == 1
        assert before["metadata"]["name"] not in {item["metadata"]["name"] for item in cluster.api.all("replicasets")}

    run(play())


def test_a_namespace_that_ends_is_left_alone() -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.api.terminating_namespaces.add("ending")
        item = cluster.deploy(replicas=1)
        ending = {**item, "metadata": {"name": "web"}}
        cluster.api.terminating_namespaces.clear()
        cluster.api.create("deployments", "ending", ending)
        cluster.api.terminating_namespaces.add("ending")
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            assert cluster.api.all("replicasets", "ending") == []
            assert cluster.api.requests["create replicasets"] == 2
            assert not [reason for reason, _ in cluster.recorded.of("Deployment") if reason == "ReplicaSetCreateError"]

    run(play())


def test_a_selector_of_everything_is_refused() -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.deploy(selector={})
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.quiet(controllers)
            assert cluster.api.all("replicasets") == []
            assert cluster.deployment()["status"]["observedGeneration"] == 1
            assert {reason for reason, _ in cluster.recorded.of("Deployment")} == {"SelectingAll"}

    run(play())


def test_a_deployment_that_is_being_deleted_changes_nothing() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.api.patch("deployments", "default", "web", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        cluster.set_image("web:2")
        await cluster.quiet(controllers)
        assert cluster.sizes() == {"1": 3}
        assert cluster.deployment()["status"]["observedGeneration"] == 2

    play_out(scenario)


def test_a_deployment_that_was_deleted_takes_its_pods_along() -> None:
    async def scenario(cluster: Cluster, controllers: Controllers) -> None:
        cluster.api.delete("deployments", "default", "web")
        await cluster.quiet(controllers)
        assert cluster.api.all("replicasets") == []
        assert cluster.api.all("pods") == []
        assert len(controllers.replica_sets.expectations) == 0

    play_out(scenario)


def test_an_upgrade_of_the_controller_rolls_nothing_out() -> None:
    """ReplicaSets are found by their template: one that another controller named by another hash is kept."""

    async def play() -> None:
        cluster = Cluster()
        item = cluster.deploy()
        labels = {"app": "web", "pod-template-hash": "5d9c7b8f6d"}
        cluster.api.create(
            "replicasets",
            "default",
            {
                "metadata": {
                    "name": "web-5d9c7b8f6d",
                    "labels": labels,
                    "annotations": {"deployment.kubernetes.io/revision": "7", "team": "a"},
                    "ownerReferences": [
                        {
                            "apiVersion": "apps/v1",
                            "kind": "Deployment",
                            "name": "web",
                            "uid": item["metadata"]["uid"],
                            "controller": True,
                        }
                    ],
                },
                "spec": {
                    "replicas": 3,
                    "minReadySeconds": 0,
                    "selector": {"matchLabels": labels},
                    "template": pod_template(labels=labels),
                },
            },
        )
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            assert [each["metadata"]["name"] for each in cluster.api.all("replicasets")] == ["web-5d9c7b8f6d"]
            assert cluster.deployment()["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "7"

    run(play())
