"""Counts, conditions, progress and the deadline of Deployments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeproxy.controllers import conditions
from kubeproxy.controllers.api_types import NO_LIMIT, Condition, Deployment, DeploymentStatus
from kubeproxy.controllers.deployments import progress
from kubeproxy.controllers.deployments import status as deployment_status
from kubeproxy.kubernetes import timestamps
from tests.controllers.builders import EPOCH, deployment, replica_set

UPDATED = timestamps.seconds(EPOCH)


def _condition(reason: str, status: str = "True", at: float = EPOCH, type: str = "Progressing") -> dict[str, str]:
    moment = timestamps.seconds(at)
    return {
        "type": type,
        "status": status,
        "reason": reason,
        "lastUpdateTime": moment,
        "lastTransitionTime": moment,
    }


def _with(reason: str | None, *, deadline: int | None = 60, **more: Any) -> Deployment:
    stated = [] if reason is None else [_condition(reason, "False" if reason == progress.TIMED_OUT else "True")]
    spec: dict[str, Any] = {} if deadline is None else {"progressDeadlineSeconds": deadline}
    return deployment(3, status={"conditions": stated, **more}, **spec)


# Conditions


def test_setting_a_condition() -> None:
    first = conditions.new("A", "True", "R", "m", EPOCH)
    stated = conditions.put([], first)
    assert stated == [first]
    same = conditions.put(stated, conditions.new("A", "True", "R", "another message", EPOCH + 60))
    assert same == [first]
    (changed,) = conditions.put(stated, conditions.new("A", "True", "S", "m", EPOCH + 60))
    assert changed.reason == "S"
    assert changed.last_transition_time == first.last_transition_time
    assert changed.last_update_time == timestamps.seconds(EPOCH + 60)
    (turned,) = conditions.put(stated, conditions.new("A", "False", "R", "m", EPOCH + 60))
    assert turned.last_transition_time == timestamps.seconds(EPOCH + 60)
    assert conditions.without(stated, "A") == []
    assert conditions.find(stated, "B") is None


# Progress


@pytest.mark.parametrize(("later_s", "expected"), [(30, 31), (59, 2), (59.000001, 0), (60, 0), (3600, 0)])
def test_when_to_look_again(later_s: float, expected: float) -> None:
    found = _with("SomeReason")
    assert progress.deadline_in(found, found.status, EPOCH + later_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    "found",
    [
        _with("SomeReason", deadline=None),
        _with("SomeReason", deadline=NO_LIMIT),
        _with(None),
        _with(progress.TIMED_OUT),
        _with("SomeReason", replicas=3, updatedReplicas=3, availableReplicas=3, observedGeneration=1),
    ],
)
def test_when_not_to_look_again(found: Deployment) -> None:
    assert progress.deadline_in(found, found.status, EPOCH + 1000) is None


@pytest.mark.parametrize(
    ("reason", "later_s", "expected"),
    [
        (None, 1000, False),
        (progress.NEW_AVAILABLE, 1000, False),
        (progress.TIMED_OUT, 0, True),
        (progress.REPLICA_SET_UPDATED, 59, False),
        (progress.REPLICA_SET_UPDATED, 60, False),
        (progress.REPLICA_SET_UPDATED, 60.001, True),
    ],
)
def test_timed_out(reason: str | None, later_s: float, expected: bool) -> None:
    found = _with(reason)
    assert progress.is_timed_out(found, found.status, EPOCH + later_s) is expected


def test_nothing_times_out_without_a_deadline() -> None:
    found = _with(progress.REPLICA_SET_UPDATED, deadline=None)
    assert not progress.is_timed_out(found, found.status, EPOCH + 1e6)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((3, 1, 2, 2), (3, 1, 2, 2), False),
        ((3, 1, 2, 2), (3, 2, 2, 2), True),
        ((4, 1, 3, 3), (3, 1, 2, 2), True),
        ((3, 3, 2, 2), (3, 3, 3, 2), True),
        ((3, 3, 3, 2), (3, 3, 3, 3), True),
        ((3, 3, 3, 3), (3, 3, 2, 2), False),
        ((3, 3, 3, 3), (4, 3, 3, 3), False),
    ],
)
def test_progressing(before: tuple[int, ...], now: tuple[int, ...], expected: bool) -> None:
    def status(counts: tuple[int, ...]) -> DeploymentStatus:
        replicas, updated, ready, available = counts
        return DeploymentStatus(
            replicas=replicas, updated_replicas=updated, ready_replicas=ready, available_replicas=available
        )

    assert progress.is_progressing(status(before), status(now)) is expected


def test_complete() -> None:
    done = DeploymentStatus(replicas=3, updated_replicas=3, available_replicas=3, observed_generation=1)
    assert progress.is_complete(deployment(3), done)
    for field in ("replicas", "updated_replicas", "available_replicas"):
        assert not progress.is_complete(deployment(3), msgspec.structs.replace(done, **{field: 2}))
    assert not progress.is_complete(deployment(3, generation=2), done)


# Status


def test_counts() -> None:
    new, old = replica_set("new", 3, pods=2, ready=2, available=1), replica_set("old", 2, pods=2, available=2)
    status = deployment_status.compute(deployment(4, surge=1, unavailable=1, generation=7), [old, new], new, EPOCH)
    assert status.observed_generation == 7
    assert (status.replicas, status.updated_replicas, status.ready_replicas) == (4, 2, 4)
    assert (status.available_replicas, status.unavailable_replicas) == (3, 2)
    (available,) = status.conditions
    assert (available.status, available.reason) == ("True", "MinimumReplicasAvailable")
    worse = deployment_status.compute(deployment(5, surge=1, unavailable=1), [old, new], new, EPOCH)
    assert worse.conditions[0].status == "False"


def test_terminating_pods_count_only_where_every_set_has_them() -> None:
    def having(number: int | None) -> Any:
        found = replica_set("a" if number is None else f"a{number}")
        return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, terminating_replicas=number))

    assert deployment_status.compute(deployment(), [having(1), having(2)], None, EPOCH).terminating_replicas == 3
    assert deployment_status.compute(deployment(), [having(1), having(None)], None, EPOCH).terminating_replicas is None
    assert deployment_status.compute(deployment(), [], None, EPOCH).terminating_replicas is None


def _follow(found: Deployment, status: DeploymentStatus, now: float = EPOCH) -> Condition | None:
    new = replica_set("new", 3, available=status.available_replicas)
    after = deployment_status.follow_rollout(found, status, new, [], now)
    return conditions.find(after.conditions, "Progressing")


def _status(found: Deployment, **counts: int) -> DeploymentStatus:
    return msgspec.structs.replace(found.status, observed_generation=1, **counts)


def test_a_rollout_that_is_complete() -> None:
    found = _with(progress.REPLICA_SET_UPDATED)
    condition = _follow(found, _status(found, replicas=3, updated_replicas=3, available_replicas=3))
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "NewReplicaSetAvailable")
    assert condition.message == 'ReplicaSet "new" has successfully progressed.'


def test_every_progress_restarts_the_deadline() -> None:
    found = _with(progress.REPLICA_SET_UPDATED)
    condition = _follow(found, _status(found, replicas=3, updated_replicas=1), EPOCH + 50)
    assert condition is not None
    assert condition.reason == "ReplicaSetUpdated"
    assert condition.last_update_time == timestamps.seconds(EPOCH + 50)
    assert condition.last_transition_time == UPDATED


def test_the_deadline_passes() -> None:
    found = _with(progress.REPLICA_SET_UPDATED, replicas=3)
    assert _follow(found, _status(found), EPOCH + 60) == found.status.conditions[0]
    condition = _follow(found, _status(found), EPOCH + 61)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "ProgressDeadlineExceeded")
    assert condition.message == 'ReplicaSet "new" has timed out progressing.'


def test_progress_after_the_deadline_turns_it_back() -> None:
    found = _with(progress.TIMED_OUT)
    condition = _follow(found, _status(found, replicas=3, updated_replicas=1), EPOCH + 100)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "ReplicaSetUpdated")
    assert condition.last_transition_time == timestamps.seconds(EPOCH + 100)


def test_a_completed_rollout_stays_so() -> None:
    found = _with(progress.NEW_AVAILABLE, replicas=3, updatedReplicas=3)
    status = _status(found, replicas=3, updated_replicas=3, available_replicas=0)
    assert _follow(found, status, EPOCH + 1e6) == found.status.conditions[0]


def test_a_return_to_an_earlier_revision_is_a_rollout_of_its_own() -> None:
    """No ReplicaSet is created for it, so the condition is still that of the rollout before."""
    found = _with(progress.NEW_AVAILABLE, replicas=4, updatedReplicas=0)
    condition = _follow(found, _status(found, replicas=4, updated_replicas=1), EPOCH + 10)
    assert condition is not None
    assert condition.reason == progress.REPLICA_SET_UPDATED


def test_without_a_deadline_there_is_no_such_condition() -> None:
    found = _with(progress.REPLICA_SET_UPDATED, deadline=None)
    assert _follow(found, _status(found, replicas=3, updated_replicas=1)) is None


def test_a_replica_failure_is_copied_and_removed() -> None:
    failing = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]
    found = _with(progress.REPLICA_SET_UPDATED)
    new, old = replica_set("new", 3), replica_set("old", 1, conditions=failing)
    status = deployment_status.follow_rollout(found, found.status, new, [old], EPOCH)
    failure = conditions.find(status.conditions, "ReplicaFailure")
    assert failure is not None
    assert (failure.reason, failure.message) == ("FailedCreate", "quota")
    again = deployment_status.follow_rollout(found, status, new, [], EPOCH)
    assert conditions.find(again.conditions, "ReplicaFailure") is None


def test_pause_and_resume() -> None:
    paused = deployment_status.paused_or_resumed(
        deployment(paused=True, progressDeadlineSeconds=60, status={"conditions": [_condition("Other")]}), EPOCH
    )
    assert paused is not None
    assert [(each.status, each.reason, each.message) for each in paused.conditions] == [
        ("Unknown", "DeploymentPaused", "Deployment is paused")
    ]
    stated = {"conditions": [_condition("DeploymentPaused", "Unknown")]}
    assert (
        deployment_status.paused_or_resumed(deployment(paused=True, progressDeadlineSeconds=60, status=stated), EPOCH)
        is None
    )
    resumed = deployment_status.paused_or_resumed(deployment(progressDeadlineSeconds=60, status=stated), EPOCH + 9)
    assert resumed is not None
    assert resumed.conditions[0].reason == "DeploymentResumed"
    assert resumed.conditions[0].last_update_time == timestamps.seconds(EPOCH + 9)
    assert deployment_status.paused_or_resumed(deployment(paused=True), EPOCH) is None
    late = {"conditions": [_condition(progress.TIMED_OUT, "False")]}
    assert (
        deployment_status.paused_or_resumed(deployment(paused=True, progressDeadlineSeconds=60, status=late), EPOCH)
        is None
    )
