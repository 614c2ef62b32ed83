"""The arithmetic of a rollout that knows the node proxies: which pods count, drain, and may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeproxy.controllers import surge
from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments import rolling_update
from kubeproxy.controllers.deployments.drain_plan import (
    MOST_DRAINED,
    OPT_IN,
    DrainOptions,
    DrainPlan,
    DrainView,
    options_of,
    plan,
    victims,
)
from kubeproxy.controllers.pod_state import is_ready
from kubeproxy.controllers.proxy_requests.reports import PodDrain
from kubeproxy.controllers.proxy_requests.timeouts import DRAIN_TIMEOUT
from kubeproxy.kubernetes import timestamps
from tests.controllers import builders

NOW = 1_760_000_000.0
OPTIONS = DrainOptions(drain_s=30.0, use_s=60.0)
FOLLOWED = PodDrain(since=NOW - 5)
UNFOLLOWED = PodDrain(waiting=frozenset({"node-a"}), since=NOW - 5)
BUSY = PodDrain(connections=3, since=NOW - 5)


def pod(name: str, *, ready: bool = True, marked: bool = False, age_s: float = 20.0) -> Pod:
    moment = timestamps.seconds(NOW - age_s)
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": moment}
    annotations = {"kubeproxy/draining": ""} if marked else {}
    metadata = {"name": name, "uid": name, "annotations": annotations, "creationTimestamp": moment}
    status = {"phase": "Running", "conditions": [condition]}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}, Pod)


def replica_set(name: str, size: int, pods: Sequence[Pod]) -> ReplicaSet:
    ready = sum(map(is_ready, pods))
    status = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
    metadata = {"name": name, "uid": name, "creationTimestamp": timestamps.seconds(NOW - 1000)}
    return msgspec.convert({"metadata": metadata, "spec": {"replicas": size}, "status": status}, ReplicaSet)


@dataclass
class Case:
    """A new and an old ReplicaSet with their pods."""

    new: list[Pod]
    old: list[Pod]
    states: dict[str, PodDrain] = field(default_factory=dict)
    replicas: int = 3
    surge: int = 1
    unavailable: int = 0
    exposed: bool = True
    in_service: frozenset[str] = frozenset()

    @property
    def deployment(self) -> Deployment:
        return builders.deployment(self.replicas, surge=self.surge, unavailable=self.unavailable)

    @property
    def sets(self) -> tuple[ReplicaSet, ReplicaSet]:
        return replica_set("new", len(self.new), self.new), replica_set("old", len(self.old), self.old)

    @property
    def view(self) -> DrainView:
        pods = {"new": self.new, "old": self.old}
        return DrainView(
            pods_of=lambda each: pods[each.metadata.name],
            exposed=lambda _: self.exposed,
            states=self.states,
            in_service=self.in_service,
            now=NOW,
        )

    def plan(self) -> DrainPlan:
        new, old = self.sets
        return plan(self.deployment, new, [old], OPTIONS, self.view)

    def victims(self) -> list[str]:
        _, old = self.sets
        found = victims(self.deployment, self.plan(), [old], self.view)
        return [pod.metadata.name for _, pods in found for pod in pods]


def names(pods: Sequence[Pod]) -> list[str]:
    return [each.metadata.name for each in pods]


OLD = [pod("a"), pod("b"), pod("c")]


def test_new_pod_counts_only_when_every_proxy_uses_it() -> None:
    waiting = Case([pod("x")], OLD, {"x": UNFOLLOWED})
    assert names(waiting.plan().awaited) == ["x"]
    assert waiting.plan().new.status.available_replicas == 0
    assert waiting.victims() == []
    used = Case([pod("x")], OLD, {"x": FOLLOWED})
    assert names(used.plan().in_service) == ["x"]
    assert len(used.victims()) == 1


def test_new_pod_that_was_not_asked_for_yet_does_not_count() -> None:
    assert names(Case([pod("x")], OLD).plan().awaited) == ["x"]


def test_new_pod_counts_once_it_was_in_use_whatever_a_new_node_reports() -> None:
    case = Case([pod("x")], OLD, {"x": UNFOLLOWED}, in_service=frozenset({"x"}))
    assert names(case.plan().in_service) == ["x"]


def test_new_pod_counts_after_its_time_out() -> None:
    assert names(Case([pod("x", age_s=59)], OLD, {"x": UNFOLLOWED}).plan().awaited) == ["x"]
    assert names(Case([pod("x", age_s=60)], OLD, {"x": UNFOLLOWED}).plan().late) == ["x"]


def test_pod_of_no_service_counts_as_upstream() -> None:
    case = Case([pod("x")], OLD, exposed=False)
    assert names(case.plan().in_service) == ["x"]
    assert len(case.victims()) == 1


def test_draining_pod_is_neither_available_nor_unhealthy() -> None:
    case = Case([pod("x")], [pod("a", marked=True), *OLD[1:]], {"x": FOLLOWED, "a": BUSY})
    found = case.plan()
    assert names(found.draining) == ["a"]
    assert (found.old[0].spec.replicas, found.old[0].status.available_replicas) == (2, 2)
    assert case.victims() == [], "with it gone no more may go"


def test_draining_pod_leaves_no_room_for_another_new_one() -> None:
    case = Case([pod("x")], [pod("a", marked=True), *OLD[1:]], {"x": FOLLOWED, "a": BUSY})
    new, old = case.sets
    assert rolling_update.scale_new(case.deployment, new, [old]) is None


@pytest.mark.parametrize(
    ("state", "drained"),
    [
        (None, False),
        (UNFOLLOWED, False),
        (BUSY, False),
        (FOLLOWED, True),
        (PodDrain(connections=3, since=NOW - 30), True),
        (PodDrain(waiting=frozenset({"node-a"}), since=NOW - 30), True),
    ],
    ids=["not asked for", "not followed", "open connections", "done", "timed out busy", "timed out unfollowed"],
)
def test_marked_pod_may_go_when_it_is_drained_or_its_time_is_over(state: PodDrain | None, drained: bool) -> None:
    case = Case([], [pod("a", marked=True)], {} if state is None else {"a": state})
    assert names(case.plan().drained) == (["a"] if drained else [])


def test_marked_pod_that_is_not_ready_need_not_drain() -> None:
    assert names(Case([], [pod("a", marked=True, ready=False)]).plan().drained) == ["a"]


def test_unhealthy_pods_go_first() -> None:
    case = Case([pod("x")], [pod("a"), pod("b", ready=False), pod("c")], {"x": FOLLOWED}, unavailable=1)
    assert case.victims()[0] == "b"


def test_only_so_many_pods_drain_at_once_as_one_service_has_room_for() -> None:
    marked = [pod(f"marked-{number}", marked=True) for number in range(MOST_DRAINED - 2)]
    old = [*marked, *(pod(f"old-{number}") for number in range(400))]
    case = Case(new=[], old=old, replicas=len(old), unavailable=len(old))
    assert len(case.victims()) == 2
    assert len(Case(new=[], old=old[2:], replicas=len(old), unavailable=len(old)).victims()) == 4


def test_pods_of_the_new_set_that_drain_are_put_back() -> None:
    assert names(Case([pod("x", marked=True)], OLD, {"x": BUSY}).plan().put_back) == ["x"]


def test_pods_beyond_the_size_of_their_set_are_on_their_way_out() -> None:
    pods = [pod("a", marked=True), pod("b"), pod("c")]
    case = Case([pod("x")], pods, {"x": FOLLOWED, "a": FOLLOWED})
    smaller = replica_set("old", 2, pods)
    found = plan(case.deployment, case.sets[0], [smaller], OPTIONS, case.view)
    assert found.old[0].spec.replicas == 2, "the size was reduced already"


def test_due_is_the_nearest_time_out() -> None:
    case = Case([pod("x", age_s=20)], [pod("a", marked=True)], {"x": UNFOLLOWED, "a": BUSY})
    assert case.plan().due == NOW + 25


# Options


def test_options_come_from_annotations() -> None:
    def of(**annotations: str) -> DrainOptions | None:
        return options_of(
            builders.deployment(annotations={f"kubeproxy/{k.replace('_', '-')}": v for k, v in annotations.items()})
        )

    assert of() is None
    assert of(drain="false") is None
    assert of(drain="true") == DrainOptions(30.0, 60.0)
    assert of(drain="true", drain_timeout="1m30s", use_timeout="0.5s") == DrainOptions(90.0, 0.5)


@pytest.mark.parametrize(
    ("name", "value"), [(OPT_IN, "yes"), (DRAIN_TIMEOUT, "30"), (DRAIN_TIMEOUT, ""), (DRAIN_TIMEOUT, "-1s")]
)
def test_unusable_options_name_what_was_found(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="found"):
        options_of(builders.deployment(annotations={OPT_IN: "true", name: value}))


# Any state: the promises of a rolling update hold with proxies as without them


STATES = st.sampled_from([None, UNFOLLOWED, BUSY, FOLLOWED, PodDrain(connections=1, since=NOW - 30)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    replicas = draw(st.integers(1, 8))
    over = draw(st.integers(0, 3))
    under = draw(st.integers(0 if over else 1, replicas))
    states: dict[str, PodDrain] = {}

    def some(prefix: str, most: int) -> list[Pod]:
        found = []
        for number in range(draw(st.integers(0, most))):
            name = f"{prefix}{number}"
            found.append(
                pod(
                    name,
                    ready=draw(st.booleans()),
                    marked=prefix == "o" and draw(st.booleans()),
                    age_s=draw(st.sampled_from([1.0, 59.0, 60.0, 500.0])),
                )
            )
            if (state := draw(STATES)) is not None:
                states[name] = state
        return found

    new = some("n", replicas)
    old = some("o", replicas + over - len(new))
    return Case(new, old, states, replicas, over, under, draw(st.booleans()))


@settings(max_examples=100)
@given(cases())
def test_no_step_takes_more_pods_out_of_use_than_may_be_unavailable(case: Case) -> None:
    found = case.plan()
    taken = set(case.victims())
    uses = {p.metadata.name for p in (*found.in_service, *found.late)}
    uses |= {p.metadata.name for p in case.old if is_ready(p) and p.metadata.annotations.draining is None}
    least = case.replicas - surge.max_unavailable(case.deployment)
    assert len(uses - taken) >= min(least, len(uses)), "enough pods are in use, or none in use was taken"
    assert not taken & {p.metadata.name for p in case.old if p.metadata.annotations.draining is not None}


@settings(max_examples=100)
@given(cases())
def test_new_set_grows_no_further_than_the_surge_allows(case: Case) -> None:
    new, old = case.sets
    size = rolling_update.scale_new(case.deployment, new, [old])
    if size is not None and size > new.spec.replicas:
        assert size + old.spec.replicas <= surge.max_total(case.deployment)


@settings(max_examples=100)
@given(cases())
def test_a_rollout_never_stands_still_without_waiting_for_something(case: Case) -> None:
    """Every pod ready, everything followed: then a step is possible until no old pod is left."""
    new = [pod(each.metadata.name, age_s=500) for each in case.new]
    old = [
        pod(each.metadata.name, marked=each.metadata.annotations.draining is not None, age_s=500) for each in case.old
    ]
    easy = Case(new, old, dict.fromkeys(names([*new, *old]), FOLLOWED), case.replicas, case.surge, case.unavailable)
    found = easy.plan()
    assert not found.waits
    if old:
        grown = rolling_update.scale_new(easy.deployment, easy.sets[0], [easy.sets[1]])
        assert found.drained or easy.victims() or grown is not None


@settings(max_examples=100)
@given(cases())
def test_without_marks_and_with_all_pods_in_use_the_steps_are_those_of_upstream(case: Case) -> None:
    old = [pod(each.metadata.name, ready=is_ready(each)) for each in case.old]
    plain = Case(case.new, old, {}, case.replicas, case.surge, case.unavailable, exposed=False)
    new, old_set = plain.sets
    budget = rolling_update.may_shrink_old(plain.deployment, new, [old_set])
    expected = 0
    if budget:
        unhealthy = rolling_update.cleanup_unhealthy([old_set], budget) or []
        expected = -sum(scale.change for scale in unhealthy)
        smaller = msgspec.structs.replace(
            old_set, spec=msgspec.structs.replace(old_set.spec, replicas=old_set.spec.replicas - expected)
        )
        expected -= sum(scale.change for scale in rolling_update.scale_down_old(plain.deployment, new, [smaller]))
    assert len(plain.victims()) == expected
