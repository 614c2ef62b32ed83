"""What a rollout that knows the node proxies does next: which pods count, which drain, which may go.

The arithmetic of `rolling_update` stays as it is. It is given other numbers:

    new ReplicaSet     an available pod counts once every live node's proxy uses it, or `use_s` after it became ready
    old ReplicaSets    a draining pod counts as gone already, so it is neither available nor unhealthy; but it exists,
                       so it leaves no room for another new one

An old pod that the arithmetic takes is marked and drained. It is deleted when no node has a connection to it any more,
or `drain_s` after its drain began. Times are Unix seconds.
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
"""How many new pods wait at once until they are used. Each of them has a request in an annotation, whose size is
limited."""
MOST_DRAINED: Final = 300
"""How many pods drain at once, for the same reason."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The timeouts of a Deployment that has opted in."""

    drain_s: float = DRAIN_S
    """After this time from the beginning of its drain a pod is deleted, whatever connections are open."""
    use_s: float = USE_S
    """After this time from becoming available a pod counts, whether or not every proxy uses it."""


def options_of(deployment: Deployment) -> DrainOptions | None:
    """Return the options of a Deployment, or None if it has not opted in. Raise ValueError, which says what is wrong,
    if the options are invalid."""
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
    """The pods of a ReplicaSet, in every phase."""
    exposed: Callable[[Pod], bool]
    """A function that returns whether a Service selects a pod. No proxy matters to other pods."""
    states: Mapping[str, PodDrain]
    """What nodes report about the pods that they were asked about, by the pods' names."""
    in_service: frozenset[str]
    """The UIDs of pods that every proxy has used at least once."""
    now: float


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The pods of a rolling step, sorted by what happens to them."""

    new: ReplicaSet
    """The new ReplicaSet. Of its available pods only those that proxies use count."""
    old: tuple[ReplicaSet, ...]
    """The old ReplicaSets without their draining pods."""
    in_service: tuple[Pod, ...]
    """The new pods that every proxy uses."""
    late: tuple[Pod, ...]
    """The new pods that count although not every proxy uses them, because their time is over."""
    awaited: tuple[Pod, ...]
    """The new pods that do not count yet."""
    draining: tuple[Pod, ...]
    """The old pods that drain."""
    drained: tuple[Pod, ...]
    """The old pods that may be deleted, because no connection is open or their time is over."""
    put_back: tuple[Pod, ...]
    """The pods of the new ReplicaSet that are marked as draining. After an undo they are wanted again."""
    due: float | None
    """When the next timeout is, or None if the rollout waits for nothing."""

    @property
    def waits(self) -> bool:
        """Return whether the rollout waits for proxies."""
        return bool(self.awaited or self.draining)


def is_marked(pod: Pod) -> bool:
    """Return whether a pod drains, or has drained, and still counts as a replica."""
    return pod.metadata.annotations.draining is not None and is_active(pod)


def plan(
    deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet], options: DrainOptions, view: DrainView
) -> DrainPlan:
    """Sort the pods, and adjust the ReplicaSets for the arithmetic."""
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
    """Return the pods that old ReplicaSets may lose now in addition to those that are marked, unavailable pods first.

    There are no more of them than may drain at once. `old` has the unadjusted ReplicaSets, in the order of
    `adjusted.old`.
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
        # If the cache has more pods than are wanted, the surplus is deleted anyway and does not count as a loss.
        if (number := min(number, len(pods))) > 0:
            room -= number
            found.append((replica_set, choose_pods_to_delete(pods, number, related=pods, now=view.now)))
    return found


def needs_drain(pod: Pod, view: DrainView) -> bool:
    """Return whether proxies may have connections to a pod. A pod that is not ready gets no new connections, and is
    deleted at once, as if there were no proxies."""
    return is_ready(pod) and view.exposed(pod)


def _losses(scales: Sequence[Scale]) -> dict[str, int]:
    return {scale.replica_set.metadata.uid: -scale.change for scale in scales if scale.change < 0}


def _is_used(state: PodDrain | None) -> bool:
    return state is not None and state.since is not None and not state.waiting


def _counts_at(pod: Pod, state: PodDrain | None, least: int, options: DrainOptions) -> float:
    """Return when a new pod counts in any case. If the pod does not tell when it became ready, the time of the request
    is used."""
    since = ready_since(pod)
    if since is not None:
        return since + least + options.use_s
    return float("inf") if state is None or state.since is None else state.since + options.use_s


def _drained_at(pod: Pod, view: DrainView, options: DrainOptions) -> float:
    """Return when a marked pod may be deleted: at once (a time long past), at its timeout, or never if no proxy was
    asked yet."""
    if not needs_drain(pod, view):
        return float("-inf")
    state = view.states.get(pod.metadata.name)
    if state is None or state.since is None:
        return float("inf")
    return float("-inf") if state.done else state.since + options.drain_s


def _without(replica_set: ReplicaSet, marked: Sequence[Pod], beyond: int, least: int, now: float) -> ReplicaSet:
    """Return a ReplicaSet as if its marked pods were gone. `beyond` is the number of pods above its size, which are
    being deleted."""
    available = sum(is_available(pod, least, now) for pod in marked)
    smaller = _smaller(replica_set, max(0, len(marked) - beyond))
    return _with_available(smaller, replica_set.status.available_replicas - available)


def _smaller(replica_set: ReplicaSet, by: int) -> ReplicaSet:
    spec = msgspec.structs.replace(replica_set.spec, replicas=max(0, replica_set.spec.replicas - by))
    return msgspec.structs.replace(replica_set, spec=spec)


def _with_available(replica_set: ReplicaSet, available: int) -> ReplicaSet:
    status = msgspec.structs.replace(replica_set.status, available_replicas=max(0, available))
    return msgspec.structs.replace(replica_set, status=status)
