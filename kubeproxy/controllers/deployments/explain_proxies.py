"""Explains a rollout's wait for the node proxies: which pod, which nodes, since when, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.deployments.drain_plan import DrainOptions, is_marked
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.controllers.proxy_requests.reports import PodDrain, number_and_names
from kubeproxy.controllers.proxy_requests.timeouts import DRAIN_TIMEOUT, USE_TIMEOUT


@dataclass(frozen=True, slots=True)
class ProxyWait:
    """A rollout's wait for node proxies, and what the user can do to end the wait."""

    waiting: Waiting
    remedy: str


def proxy_wait(
    new_pods: Sequence[Pod],
    old_pods: Sequence[Pod],
    states: Mapping[str, PodDrain],
    options: DrainOptions,
    now: float,
) -> ProxyWait | None:
    """Return the wait with the latest end, or None if the rollout waits for no proxy."""
    found = [
        *(_use(pod, states[pod.metadata.name], options, now) for pod in new_pods if pod.metadata.name in states),
        *(
            _drain(pod, states[pod.metadata.name], options, now)
            for pod in old_pods
            if pod.metadata.name in states and is_marked(pod)
        ),
    ]
    waits = [each for each in found if each is not None]
    if not waits:
        return None
    last = max(waits, key=lambda one: one.waiting.since or 0.0)
    if len(waits) == 1:
        return last
    more = f"{last.waiting.text} (and {len(waits) - 1} more)"
    return ProxyWait(Waiting(more, last.waiting.since), last.remedy)


def _use(pod: Pod, state: PodDrain, options: DrainOptions, now: float) -> ProxyWait | None:
    if state.since is None or not state.waiting:
        return None
    text = (
        f"pod {pod.metadata.name} is ready, but the proxies of {number_and_names(state.waiting)} do not use it; it"
        f" counts {_until(state.since + options.use_s, now)} in any case"
    )
    return ProxyWait(Waiting(text, state.since), _remedy(USE_TIMEOUT, state))


def _drain(pod: Pod, state: PodDrain, options: DrainOptions, now: float) -> ProxyWait | None:
    if state.since is None or state.done:
        return None
    if state.waiting:
        why = f"the proxies of {number_and_names(state.waiting)} have not followed"
    else:
        count = f"{state.connections} connection{'' if state.connections == 1 else 's'}"
        why = f"{count} from {number_and_names(state.busy)} {'is' if state.connections == 1 else 'are'} open"
    if state.kept:
        why += f", and {number_and_names(state.kept)} {'has' if len(state.kept) == 1 else 'have'} no other endpoint"
    text = f"pod {pod.metadata.name} drains: {why}; it goes {_until(state.since + options.drain_s, now)} in any case"
    remedy = _remedy(DRAIN_TIMEOUT, state) if state.waiting else f"end the connections, or lower {DRAIN_TIMEOUT}"
    return ProxyWait(Waiting(text, state.since), remedy)


def _remedy(timeout: str, state: PodDrain) -> str:
    if state.omitted:
        return (
            "have fewer pods and Services of this namespace rolled at once: the reports of"
            f" {number_and_names(state.omitted)} have no room for all"
        )
    return f"read kubeproxy's log and status on these nodes, or lower {timeout}"


def _until(moment: float, now: float) -> str:
    left = round(moment - now)
    return f"in {left} s" if left > 0 else "now"
