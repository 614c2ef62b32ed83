"""Decides which pods of a ReplicaSet are deleted first. It is pure; `now` is in Unix seconds.

The order is that of the ReplicaSet controller in Kubernetes 1.36 (ActivePodsWithRanks). Pods are compared by several
criteria, and the first difference decides.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.pod_state import init_restarts, is_ready, ready_since, restarts
from kubeproxy.kubernetes import timestamps

_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
_NEWEST = -2
_COST = re.compile(r"-[0-9]+|0|[1-9][0-9]*")
_COST_MIN, _COST_MAX = -(2**31), 2**31 - 1


def deletion_cost(pod: Pod) -> int:
    """Return the annotation ``pod-deletion-cost``. Return 0 if it is absent or not a 32-bit integer, or has a plus sign
    or leading zeros."""
    text = pod.metadata.annotations.deletion_cost
    if text is None or not _COST.fullmatch(text):
        return 0
    cost = int(text)
    return cost if _COST_MIN <= cost <= _COST_MAX else 0


def related_per_node(related: Iterable[Pod]) -> Counter[str]:
    """Return the number of active pods by node. `related` are the pods of all ReplicaSets with the same owner."""
    return Counter(pod.spec.node_name for pod in related if pod.spec.node_name)


def choose_pods_to_delete(pods: Sequence[Pod], number: int, *, related: Iterable[Pod], now: float) -> list[Pod]:
    """Return the first `number` pods in the order of deletion. `related` are the pods of all ReplicaSets with the same
    owner."""
    if number >= len(pods):
        return list(pods)
    nodes = related_per_node(related)
    ranked = sorted(pods, key=lambda pod: _rank(pod, nodes[pod.spec.node_name] if pod.spec.node_name else 0, now))
    return ranked[:number]


def _rank(pod: Pod, on_node: int, now: float) -> tuple[object, ...]:
    """Return a pod's sort key. The pod with the smallest key is deleted first.

    Ages are compared by their base-2 logarithms, so that among pods of about the same age the UID decides, and not the
    time of creation. Upstream compares the UIDs even before the restarts if two ready times differ by less than a power
    of two. That comparison is not transitive. Here restarts come first.
    """
    ready = is_ready(pod)
    return (
        pod.spec.node_name != "",
        _PHASES.get(pod.status.phase, 0),
        ready,
        deletion_cost(pod),
        -on_node,
        _logarithmic_age(ready_since(pod), now) if ready else _NEWEST,
        -restarts(pod),
        -init_restarts(pod),
        _logarithmic_age(timestamps.parse(pod.metadata.creation_timestamp), now),
        pod.metadata.uid,
    )


def _logarithmic_age(since: float | None, now: float) -> int:
    """Return the base-2 logarithm of an age in nanoseconds, rounded down. A pod without a time counts as the newest."""
    if since is None:
        return _NEWEST
    nanoseconds = (now - since) * 1e9
    return int(math.log2(nanoseconds)) if nanoseconds >= 1 else -1
