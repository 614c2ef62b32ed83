"""``kubeproxy rollout`` against controllers in memory: what it prints, writes and refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from kubeproxy.commands.rollout.command import Rollout, RolloutError
from kubeproxy.controllers.api_types import Deployment, Pod
from kubeproxy.controllers.deployments.explain import duration, explain
from kubeproxy.controllers.deployments.rollout_status import DeadlineExceededError, State, state_of, status_line
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from tests.controllers.builders import deployment, replica_set
from tests.controllers.cluster import Cluster, running
from tests.controllers.virtual_time import run, unix_time


class Terminal:
    """A Deployment that is rolled out, the command, and what it has printed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lines: list[str] = []
        self.rollout = Rollout(cast(Client, cluster.api), "default", "web", self.lines.append, unix_time)

    def refuse_image(self) -> str:
        """Have the kubelet report that it cannot pull the image `broken`; return the pod's name."""
        (pod,) = [it for it in self.cluster.api.all("pods") if it["spec"]["containers"][0]["image"] == "broken"]
        name: str = pod["metadata"]["name"]
        waiting = {"name": "app", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
        self.cluster.api.patch("pods", "default", name, {"status": {"containerStatuses": [waiting]}})
        return name

    def take(self) -> list[str]:
        lines = list(self.lines)
        self.lines.clear()
        return lines


def _play(scenario: Callable[[Terminal], Awaitable[None]], **spec: Any) -> None:
    async def play() -> None:
        cluster = Cluster()
        cluster.deploy(**spec)
        async with running(cluster.api, cluster.recorded) as controllers:
            await cluster.complete()
            await cluster.quiet(controllers)
            await scenario(Terminal(cluster))

    run(play())


def test_a_status_that_is_written_meanwhile_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Rollout._deployment

    async def scenario(it: Terminal) -> None:
        it.cluster.set_image("web:2")
        await it.rollout.status()

        async def read_before_a_status(rollout: Rollout) -> Deployment:
            found = await read(rollout)
            it.cluster.api.patch("deployments", "default", "web", {"status": {"replicas": 77}})
            return found

        monkeypatch.setattr(Rollout, "_deployment", read_before_a_status)
        await it.rollout.restart()
        await it.rollout.undo()
        await it.rollout.pause()
        await it.rollout.resume()
        assert [line.rpartition("web ")[2] for line in it.take()[-4:]] == [
            "restarted",
            "rolled back",
            "paused",
            "resumed",
        ]

    _play(scenario)


def test_following_a_rollout() -> None:
    async def scenario(it: Terminal) -> None:
        await it.rollout.status()
        assert it.take() == ['deployment "web" successfully rolled out']
        it.cluster.set_image("web:2")
        await it.rollout.status()
        lines = it.take()
        assert lines[0] == "Waiting for deployment spec update to be observed..."
        assert 'Waiting for deployment "web" rollout to finish: 1 out of 4 new replicas have been updated...' in lines
        assert lines[-1] == 'deployment "web" successfully rolled out'
        assert len(lines) == len([line for line, after in zip(lines, [*lines[1:], ""], strict=True) if line != after])

    _play(scenario, replicas=4)


def test_a_rollout_that_exceeds_its_deadline() -> None:
    async def scenario(it: Terminal) -> None:
        it.cluster.set_image("broken")
        with pytest.raises(RolloutError, match='deployment "web" exceeded its progress deadline'):
            await it.rollout.status()
        assert it.take()[-1].startswith('Deployment "web" is timed out: 1 of 3 pods are new')
        with pytest.raises(RolloutError, match="exceeded its progress deadline"):
            await it.rollout.status(watch=False)

    _play(scenario, progressDeadlineSeconds=30)


def test_giving_up() -> None:
    async def scenario(it: Terminal) -> None:
        it.cluster.set_image("broken")
        asyncio.get_running_loop().call_later(10, it.refuse_image)
        with pytest.raises(RolloutError, match="timed out waiting for the condition"):
            await it.rollout.status(timeout_s=20)
        said = it.take()[-1]
        assert said.startswith('Deployment "web" is progressing: 1 of 3 pods are new')
        assert re.search(r"pod web-\S+ is not ready: .*ImagePullBackOff: no such tag", said)
        await it.rollout.status(watch=False)
        assert "1 out of 3 new replicas" in it.take()[-1]

    _play(scenario)


def test_a_deployment_that_is_deleted_meanwhile() -> None:
    async def scenario(it: Terminal) -> None:
        it.cluster.set_image("broken")
        asyncio.get_running_loop().call_later(9, it.cluster.api.delete, "deployments", "default", "web")
        with pytest.raises(RolloutError, match="deleted"):
            await it.rollout.status()
        with pytest.raises(ApiError, match=r'NotFound: deployments "web" not found'):
            await it.rollout.status()

    _play(scenario)


def test_history_and_undo() -> None:
    async def scenario(it: Terminal) -> None:
        edit = {
            "metadata": {"annotations": {"kubernetes.io/change-cause": "a better one"}},
            "spec": {"template": {"spec": {"containers": [{"name": "app", "image": "web:2"}]}}},
        }
        it.cluster.api.patch("deployments", "default", "web", edit)
        await it.cluster.complete()
        await it.rollout.history()
        assert it.take() == [
            "deployment.apps/web ",
            "REVISION  CHANGE-CAUSE",
            "1         <none>",
            "2         a better one",
            "",
        ]
        await it.rollout.history(revision=1)
        assert any("image: web:1" in line for line in it.take())
        with pytest.raises(RolloutError, match="unable to find the specified revision"):
            await it.rollout.history(revision=9)
        await it.rollout.undo(dry_run=True)
        assert any("image: web:1" in line for line in it.take())
        assert it.cluster.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "web:2"
        await it.rollout.undo()
        assert it.take() == ["deployment.apps/web rolled back"]
        await it.cluster.complete()
        found = it.cluster.deployment()
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "web:1"
        assert found["spec"]["template"]["spec"]["unknownField"] == {"kept": [1, None, {}]}
        await it.rollout.undo(to_revision=3)
        assert it.take() == ["deployment.apps/web skipped rollback (current template already matches revision 3)"]
        with pytest.raises(RolloutError, match="unable to find specified revision 1 in history"):
            await it.rollout.undo(to_revision=1)

    _play(scenario)


def test_undo_without_a_history() -> None:
    async def scenario(it: Terminal) -> None:
        with pytest.raises(RolloutError, match='no rollout history found for deployment "web"'):
            await it.rollout.undo()

    _play(scenario)


def test_pause_resume_and_restart() -> None:
    async def scenario(it: Terminal) -> None:
        with pytest.raises(RolloutError, match=r'deployments\.apps "web" is not paused'):
            await it.rollout.resume()
        await it.rollout.pause()
        for refused in (it.rollout.pause, it.rollout.undo, it.rollout.restart):
            with pytest.raises(RolloutError, match="paused"):
                await refused()
        await it.rollout.resume()
        await it.rollout.restart()
        assert it.take() == [
            "deployment.apps/web paused",
            "deployment.apps/web resumed",
            "deployment.apps/web restarted",
        ]
        before = {pod["metadata"]["name"] for pod in it.cluster.api.all("pods")}
        await asyncio.sleep(1)
        await it.cluster.complete()
        await asyncio.sleep(30)
        after = {pod["metadata"]["name"] for pod in it.cluster.api.all("pods")}
        assert not before & after

    _play(scenario)


def test_explaining() -> None:
    async def scenario(it: Terminal) -> None:
        await it.rollout.explain()
        assert it.take() == ['Deployment "web" is rolled out: 3 of 3 pods are new and available.']
        it.cluster.set_image("broken")
        await asyncio.sleep(40)
        name = it.refuse_image()
        node = it.cluster.api.get("pods", name)["spec"]["nodeName"]
        await it.rollout.explain()
        (said,) = it.take()
        assert 'Deployment "web" is progressing: 1 of 3 pods are new, 3 available, 3 old ones left.' in said
        assert f"pod {name} is not ready: container app waits, ImagePullBackOff: no such tag." in said
        assert f"It waits for 40s: pod {name}" in said
        assert f"on node {node}" in said
        assert "To go on: correct the image's name or tag" in said
        await it.rollout.pause()
        await asyncio.sleep(10)
        await it.rollout.explain()
        assert "paused" in it.take()[-1]

    _play(scenario)


def _unready(**status: Any) -> Pod:
    container = {"name": "app", "ready": False, **status}
    stated = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready: [app]"}]
    item = {
        "metadata": {"name": "web-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "worker"},
        "status": {"phase": "Running", "conditions": stated, "containerStatuses": [container]},
    }
    return msgspec.convert(item, Pod)


def _explained(pod: Pod, warning: str = "") -> str:
    new = replica_set("web-new", 3)
    found = deployment(3, status={"observedGeneration": 1, "replicas": 3, "updatedReplicas": 1})
    return explain(found, new, [pod], [], {"web-1": warning} if warning else {}, 1767225600.0 + 90)


@pytest.mark.parametrize(
    ("status", "warning", "reason", "remedy"),
    [
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            },
            "",
            "container app waits, CrashLoopBackOff: back-off 40s; its last run ended with exit code 137 (OOMKilled).",
            "raise the container's memory limit",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no such\nfile"}},
            },
            "",
            "waits, CrashLoopBackOff; its last run ended with exit code 1 (Error): no such file.",
            "kubectl logs --previous",
        ),
        (
            {"state": {"terminated": {"exitCode": 2, "reason": "Error"}}},
            "",
            "container app ended with exit code 2 (Error).",
            "kubectl logs",
        ),
        (
            {"state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}},
            "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 500",
            "ContainersNotReady: unready: [app]. The pod is on node worker. Its last warning: Unhealthy",
            "mend the application or its probe",
        ),
        (
            {"state": {"waiting": {"reason": "ContainerCreating"}}},
            'FailedMount: MountVolume.SetUp failed for volume "v" : configmap "c" not found',
            "waits, ContainerCreating. The pod is on node worker. Its last warning: FailedMount",
            "create the ConfigMap, Secret or volume",
        ),
    ],
)
def test_the_reason_of_an_unready_pod(status: dict[str, Any], warning: str, reason: str, remedy: str) -> None:
    text = _explained(_unready(**status), warning)
    assert reason in text
    assert text.startswith('Deployment "web" is progressing: ')
    assert "It waits for 1m30s: pod web-1 is not ready" in text
    assert f"To go on: {remedy}" in text or remedy in text.partition("To go on: ")[2]


def test_the_schedulers_reason_of_a_pending_pod() -> None:
    message = "0/3 nodes are available: 3 Insufficient cpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = {"metadata": {"name": "web-1"}, "status": {"phase": "Pending", "conditions": [unscheduled]}}
    text = _explained(msgspec.convert(pod, Pod))
    assert f"pod web-1 is not ready: Unschedulable: {message}" in text
    assert "To go on: free resources or add a node" in text


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('pods "web-1" is forbidden: exceeded quota: few, requested: pods=1', "raise the namespace's ResourceQuota"),
        ('Internal error occurred: failed calling webhook "pods.example.com"', "make the webhook's service answer"),
        ('admission webhook "pods.example.com" denied the request: no', "change the pod template as the webhook"),
        ('error looking up service account default/app: serviceaccount "app" not found', "create the service account"),
    ],
)
def test_the_reason_of_pods_that_are_refused(message: str, remedy: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    found = deployment(3, status={"observedGeneration": 1, "conditions": [failure]})
    text = explain(found, replica_set("web-new", 3), [], [], {}, 0.0)
    assert f"pods cannot be created or deleted: {message}." in text
    assert f"To go on: {remedy}" in text


def test_the_reason_of_a_replica_set_that_is_refused() -> None:
    message = 'Failed to create new replica set "web-1": quota "few"'
    failed = {"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError", "message": message}
    found = deployment(3, status={"observedGeneration": 1, "conditions": [failed]})
    text = explain(found, None, [], [], {}, 0.0)
    assert f"its new ReplicaSet has not been created yet: {message}." in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (60, "1m"), (61, "1m1s"), (3600, "1h"), (3725, "1h2m"), (90000, "1d1h"), (-5, "0s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, "Waiting for deployment spec update to be observed..."),
        (
            {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 3},
            'Waiting for deployment "web" rollout to finish: 2 out of 3 new replicas have been updated...',
        ),
        (
            {"observedGeneration": 1, "updatedReplicas": 3, "replicas": 4},
            'Waiting for deployment "web" rollout to finish: 1 old replicas are pending termination...',
        ),
        (
            {"observedGeneration": 1, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 1},
            'Waiting for deployment "web" rollout to finish: 1 of 3 updated replicas are available...',
        ),
        (
            {"observedGeneration": 1, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 3},
            'deployment "web" successfully rolled out',
        ),
    ],
)
def test_kubectls_lines(status: dict[str, int], expected: str) -> None:
    found = deployment(3, status=status)
    line, done = status_line(found)
    assert line == expected
    assert done == (state_of(found) is State.COMPLETE)


def test_a_deadline_that_is_over() -> None:
    stated = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    found = deployment(3, status={"observedGeneration": 1, "conditions": stated})
    assert state_of(found) is State.TIMED_OUT
    with pytest.raises(DeadlineExceededError):
        status_line(found)
