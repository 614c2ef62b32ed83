"""The status of ReplicaSets, and creating pods in slow start."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.controllers.api_types import ReplicaSet
from kubeproxy.controllers.replicasets import status as replicaset_status
from kubeproxy.controllers.replicasets.slow_start import batches, slow_start
from tests.controllers.builders import EPOCH, pod, replica_set


def _set(replicas: int, *, min_ready: int = 0, **more: object) -> ReplicaSet:

    found = replica_set("a", replicas, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, min_ready_seconds=min_ready))


LABELS = {"app": "web", "pod-template-hash": "a"}


def test_counts() -> None:
    pods = [
        pod("a", ready_s=100, labels=LABELS),
        pod("b", ready_s=5, labels={"app": "web"}),
        pod("c", unready=True, labels={**LABELS, "more": "x"}),
    ]
    status = replicaset_status.compute(_set(3, min_ready=10, generation=4), pods, 2, None, EPOCH)
    assert (status.replicas, status.fully_labeled_replicas, status.ready_replicas) == (3, 2, 2)
    assert (status.available_replicas, status.terminating_replicas, status.observed_generation) == (1, 2, 4)


@pytest.mark.parametrize(("ready_s", "available"), [(9.9, 0), (10, 1), (11, 1)])
def test_available_from_the_moment_on(ready_s: float, available: int) -> None:
    status = replicaset_status.compute(_set(1, min_ready=10), [pod("a", ready_s=ready_s)], None, None, EPOCH)
    assert status.available_replicas == available


def test_the_next_moment() -> None:
    pods = [pod("a", ready_s=4), pod("b", ready_s=7), pod("c", ready_s=50), pod("d", unready=True)]
    assert replicaset_status.next_availability(_set(4, min_ready=10), pods, EPOCH) == pytest.approx(3)
    assert replicaset_status.next_availability(_set(4), pods, EPOCH) is None


def test_a_failure_is_noted_once() -> None:
    first = replicaset_status.compute(_set(2), [], None, RuntimeError("quota exceeded"), EPOCH)
    (condition,) = first.conditions
    assert (condition.type, condition.status, condition.reason) == ("ReplicaFailure", "True", "FailedCreate")
    assert condition.message == "quota exceeded"

    known = msgspec.structs.replace(_set(2), status=first)
    assert replicaset_status.compute(known, [], None, RuntimeError("other"), EPOCH + 5).conditions == [condition]
    assert replicaset_status.compute(known, [], None, None, EPOCH + 5).conditions == []
    surplus = replicaset_status.compute(_set(0), [pod("a")], None, RuntimeError("no"), EPOCH)
    assert surplus.conditions[0].reason == "FailedDelete"


def test_the_patch() -> None:
    body = replicaset_status.patch(_set(1), replicaset_status.compute(_set(1), [], None, None, EPOCH))
    assert body["metadata"] == {"resourceVersion": "7"}
    assert "terminatingReplicas" not in body["status"]
    assert body["status"]["observedGeneration"] == 1


@pytest.mark.parametrize(("number", "expected"), [(0, []), (1, [1]), (3, [1, 2]), (10, [1, 2, 4, 3])])
def test_batches(number: int, expected: list[int]) -> None:
    assert list(batches(number)) == expected


@pytest.mark.parametrize(("number", "limit", "calls", "successes"), [(10, 0, 1, 0), (10, 5, 7, 5), (10, 10, 10, 10)])
async def test_slow_start(number: int, limit: int, calls: int, successes: int) -> None:
    made = 0

    async def request() -> None:
        nonlocal made
        made += 1
        if made > limit:
            raise RuntimeError("quota")

    succeeded, error = await slow_start(number, request)
    assert (made, succeeded) == (calls, successes)
    assert (error is None) == (limit >= number)
