"""Plans the next step of a rollout that waits for the node proxies: which pods count, drain, or may be deleted.

The step sizes come from `rolling_update`, whose input is adjusted:

    new ReplicaSet     an available pod counts once every live node's proxy uses it, or `use_s` after it became ready
    old ReplicaSets    a draining pod counts as deleted, so it is neither available nor unavailable; but it still
                       counts towards the largest number of pods, so no new pod takes its place before it is deleted

If `rolling_update` shrinks an old ReplicaSet, the pods to be deleted are marked and drained first. A pod is deleted
when no node has a connection to it any more, or `drain_s` seconds after its drain began. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeproxy.controllers.api_types import Deployment, Pod, ReplicaSet
from kubeproxy.controllers.deployments import rolling_update
from kubeproxy.controllers.deployments.rolling_update import Scale
from kubeproxy.controllers.pod_ranking import choose_pods_to_delete
from kubeproxy.controllers.pod_state import is_active, is_available, is_ready, ready_since
from kubeproxy.controllers.proxy_requests.reports import PodDrain
from kubeproxy.controllers.proxy_requests.timeouts import DRAIN_S, DRAIN_TIMEOUT, USE_S, USE_TIMEOUT, seconds_in

OPT_IN: Final = "kubeproxy/drain"
"""The annotation of a Deployment whose rollouts wait for the node proxies. Its value is ``true``."""
MOST_AWAITED: Final = 200
"""The largest number of new pods about which the proxies are asked at once. Each pod has a request in an annotation,
whose size is limited."""
MOST_DRAINED: Final = 300
"""The largest number of pods that drain at once. Each pod has a request in an annotation, whose size is limited."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The timeouts of a Deployment whose rollouts wait for the node proxies."""

    drain_s: float = DRAIN_S
    """A pod is deleted this many seconds after its drain began, even if connections are open."""
    use_s: float = USE_S
    """A new pod counts this many seconds after it became available, even if not every proxy uses it."""


def options_of(deployment: Deployment) -> DrainOptions | None:
    """Return the options of a Deployment, or None if its rollouts do not wait for proxies. Raise ValueError if an
    annotation is invalid; the message names it."""
    annotations = deployment.metadata.annotations
    opted = annotations.get(OPT_IN, "false")
    if opted not in ("true", "false"):
        raise ValueError(f"annotation {OPT_IN}: found {opted!r}; allowed are true and false")
    if opted == "false":
        return None
    return DrainOptions(
        drain_s=seconds_in(annotations.get(DRAIN_TIMEOUT), DRAIN_TIMEOUT, DRAIN_S),
        use_s=seconds_in(annotations.get(USE_TIMEOUT), USE_TIMEOUT, USE_S),
    )


@dataclass(frozen=True, slots=True)
class DrainView:
    """The pods of a rollout, and what the nodes report about them."""

    pods_of: Callable[[ReplicaSet], Sequence[Pod]]
    """A function that returns the pods of a ReplicaSet, in every phase."""
    exposed: Callable[[Pod], bool]
    """A function that returns whether a Service selects a pod. A rollout waits for proxies only with such pods."""
    states: Mapping[str, PodDrain]
    """What the nodes report about each pod for which there are requests, by pod name."""
    in_service: frozenset[str]
    """The UIDs of pods that every proxy has used at least once."""
    now: float


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The pods of one step, grouped by what happens to them."""

    new: ReplicaSet
    """The new ReplicaSet. Its status counts only the available pods that proxies use."""
    old: tuple[ReplicaSet, ...]
    """The old ReplicaSets without their draining pods."""
    in_service: tuple[Pod, ...]
    """The new pods that every proxy uses."""
    late: tuple[Pod, ...]
    """The new pods that count although not every proxy uses them, because `use_s` is over."""
    awaited: tuple[Pod, ...]
    """The new pods that do not count yet."""
    draining: tuple[Pod, ...]
    """The old pods that drain."""
    drained: tuple[Pod, ...]
    """The old pods that may be deleted, because no connection is open or `drain_s` is over."""
    put_back: tuple[Pod, ...]
    """The pods of the new ReplicaSet that are marked as draining. They were old pods before the rollout was undone."""
    due: float | None
    """The time of the next timeout, or None if the rollout waits for nothing."""

    @property
    def waits(self) -> bool:
        """Return whether the rollout waits for proxies."""
        return bool(self.awaited or self.draining)


def is_marked(pod: Pod) -> bool:
    """Return whether an active pod has the mark of a drain, which may be over."""
    return pod.metadata.annotations.draining is not None and is_active(pod)


def plan(
    deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet], options: DrainOptions, view: DrainView
) -> DrainPlan:
    """Group the pods, and adjust the counts of the ReplicaSets for `rolling_update`."""
    least, now = deployment.spec.min_ready_seconds, view.now
    active = [pod for pod in view.pods_of(new) if is_active(pod)]
    available = [pod for pod in active if is_available(pod, least, now)]
    in_service: list[Pod] = []
    late: list[Pod] = []
    awaited: list[Pod] = []
    ends: list[float] = []
    for pod in available:
        state = view.states.get(pod.metadata.name)
        ends_at = _counts_at(pod, state, least, options)
        if pod.metadata.uid in view.in_service or not view.exposed(pod) or _is_used(state):
            in_service.append(pod)
        elif ends_at <= now:
            late.append(pod)
        else:
            awaited.append(pod)
            ends.append(ends_at)
    draining: list[Pod] = []
    drained: list[Pod] = []
    adjusted = []
    for replica_set in old:
        marked = [pod for pod in view.pods_of(replica_set) if is_marked(pod)]
        for pod in marked:
            ends_at = _drained_at(pod, view, options)
            if ends_at <= now:
                drained.append(pod)
            else:
                draining.append(pod)
                ends.append(ends_at)
        beyond = max(0, sum(map(is_active, view.pods_of(replica_set))) - replica_set.spec.replicas)
        adjusted.append(_without(replica_set, marked, beyond, least, now))
    return DrainPlan(
        new=_with_available(new, new.status.available_replicas - len(awaited)),
        old=tuple(adjusted),
        in_service=tuple(in_service),
        late=tuple(late),
        awaited=tuple(awaited[:MOST_AWAITED]),
        draining=tuple(draining),
        drained=tuple(drained),
        put_back=tuple(pod for pod in active if is_marked(pod)),
        due=min((end for end in ends if end < float("inf")), default=None),
    )


def victims(
    deployment: Deployment, adjusted: DrainPlan, old: Sequence[ReplicaSet], view: DrainView
) -> list[tuple[ReplicaSet, list[Pod]]]:
    """Return the pods of old ReplicaSets to be drained and deleted next, unavailable pods first. Pods that are already
    marked are not among them.

    At most `MOST_DRAINED` pods drain at once. `old` has the unadjusted ReplicaSets, in the order of `adjusted.old`.
    """
    new, shrinking = adjusted.new, list(adjusted.old)
    budget = rolling_update.may_shrink_old(deployment, new, shrinking)
    if budget == 0:
        return []
    unhealthy = rolling_update.cleanup_unhealthy(shrinking, budget)
    if unhealthy is None:
        return []
    losses = _losses(unhealthy)
    shrinking = [
        msgspec.structs.replace(
            each,
            spec=msgspec.structs.replace(each.spec, replicas=each.spec.replicas - losses.get(each.metadata.uid, 0)),
        )
        for each in shrinking
    ]
    for uid, number in _losses(rolling_update.scale_down_old(deployment, new, shrinking)).items():
        losses[uid] = losses.get(uid, 0) + number
    found = []
    room = MOST_DRAINED - len(adjusted.draining) - len(adjusted.drained)
    for replica_set in old:
        number = min(losses.get(replica_set.metadata.uid, 0), room)
        pods = [pod for pod in view.pods_of(replica_set) if is_active(pod) and not is_marked(pod)]
        # The cache may have fewer unmarked pods than the status counts.
        if (number := min(number, len(pods))) > 0:
            room -= number
            found.append((replica_set, choose_pods_to_delete(pods, number, related=pods, now=view.now)))
    return found


def needs_drain(pod: Pod, view: DrainView) -> bool:
    """Return whether a pod has to drain before it is deleted. A pod that is not ready gets no connections, and is
    deleted at once."""
    return is_ready(pod) and view.exposed(pod)


def _losses(scales: Sequence[Scale]) -> dict[str, int]:
    return {scale.replica_set.metadata.uid: -scale.change for scale in scales if scale.change < 0}


def _is_used(state: PodDrain | None) -> bool:
    return state is not None and state.since is not None and not state.waiting


def _counts_at(pod: Pod, state: PodDrain | None, least: int, options: DrainOptions) -> float:
    """Return when a new pod counts even if proxies do not use it. If the pod's status lacks the time at which it became
    ready, the time of the request is used instead."""
    since = ready_since(pod)
    if since is not None:
        return since + least + options.use_s
    return float("inf") if state is None or state.since is None else state.since + options.use_s


def _drained_at(pod: Pod, view: DrainView, options: DrainOptions) -> float:
    """Return when a marked pod may be deleted: at once (a time long past), at its timeout, or never (infinity) while no
    proxy has been asked."""
    if not needs_drain(pod, view):
        return float("-inf")
    state = view.states.get(pod.metadata.name)
    if state is None or state.since is None:
        return float("inf")
    return float("-inf") if state.done else state.since + options.drain_s


def _without(replica_set: ReplicaSet, marked: Sequence[Pod], beyond: int, least: int, now: float) -> ReplicaSet:
    """Return a ReplicaSet with the counts that it has without its marked pods. `beyond` is the number of pods above its
    size, which its controller deletes."""
    available = sum(is_available(pod, least, now) for pod in marked)
    smaller = _smaller(replica_set, max(0, len(marked) - beyond))
    return _with_available(smaller, replica_set.status.available_replicas - available)


def _smaller(replica_set: ReplicaSet, by: int) -> ReplicaSet:
    spec = msgspec.structs.replace(replica_set.spec, replicas=max(0, replica_set.spec.replicas - by))
    return msgspec.structs.replace(replica_set, spec=spec)


def _with_available(replica_set: ReplicaSet, available: int) -> ReplicaSet:
    status = msgspec.structs.replace(replica_set.status, available_replicas=max(0, available))
    return msgspec.structs.replace(replica_set, status=status)
