"""Decides which pods wait at their readiness gate, and what the gate's condition says. Pure; times are Unix seconds.

The gate answers one question: has every node's proxy taken this pod into use? So once the condition is True it stays
True, as with the gates of cloud load balancers. A pod that is unready for a while becomes ready again without the
proxies, and proxies that fail later take no running pod out of service.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kubeproxy.controllers import event_sink
from kubeproxy.controllers.api_types import Pod, PodCondition
from kubeproxy.controllers.pod_state import condition_of, is_active, is_ready, ready_since
from kubeproxy.controllers.proxy_requests.reports import PodDrain, Reports, number_and_names
from kubeproxy.controllers.proxy_requests.timeouts import USE_S, USE_TIMEOUT, seconds_in
from kubeproxy.kubernetes import timestamps

GATE: Final = "kubeproxy/in-use"
"""The type of the condition, which a pod lists among its readinessGates."""
SETTLE_S: Final = 10.0
"""How long a request stays after the pod has become ready, so that every node has the pod's new EndpointSlice by
then."""
LATE_S: Final = 5.0
"""How long nodes may take before the condition names them."""
REWRITE_S: Final = 10.0
"""The shortest time between two writes of a condition that names nodes."""


class Reason(StrEnum):
    """Why the condition has its status."""

    IN_USE = "InUse"
    NO_SERVICE = "NoService"
    NO_REPORTS = "NoReports"
    NOT_ASKED = "ProxiesUnknown"
    TIMED_OUT = "TimedOut"
    WAITS = "WaitingForProxies"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the condition of a pod's gate is to say."""

    reason: Reason
    message: str
    event: str = ""
    """The reason of the Event that warns the pod's owner, or an empty text for none."""

    @property
    def opens(self) -> bool:
        """Return whether the condition is True."""
        return self.reason is not Reason.WAITS


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known about one pod that waits."""

    reports: Reports
    exposed: bool
    """Whether the proxies send connections of a Service to the pod."""
    state: PodDrain
    """What the nodes report about the pod."""
    trouble: str = ""
    """Why the proxies cannot be asked about the pod."""


def has_gate(pod: Pod) -> bool:
    """Return whether a pod waits for the proxies before it becomes ready."""
    return any(gate.condition_type == GATE for gate in pod.spec.readiness_gates)


def waits(pod: Pod) -> bool:
    """Return whether only this gate keeps a pod from being ready.

    Other gates come first. They may be reasons to send a pod no connections yet."""
    if not has_gate(pod) or not is_active(pod) or not pod.status.pod_ips:
        return False
    return not _is_true(pod, GATE) and all(_is_true(pod, type) for type in _before(pod))


def waits_since(pod: Pod) -> float:
    """Return when the pod began to wait: when its containers became ready, and its other gates were open."""
    known = (condition_of(pod, type) for type in _before(pod))
    times = (timestamps.parse(each.last_transition_time) for each in known if each is not None)
    begun = [at for at in times if at is not None]
    return max(begun, default=timestamps.parse(pod.metadata.creation_timestamp) or 0.0)


def needs_request(pod: Pod, now: float) -> bool:
    """Return whether the proxies still have to be asked to use a pod, because its gate is closed or has only just
    opened. A pod whose containers are not ready any more gets no connections."""
    if waits(pod):
        return True
    ready = is_active(pod) and has_gate(pod) and all(_is_true(pod, type) for type in (*_before(pod), GATE))
    return ready and settles_in(pod, now) > 0


def settles_in(pod: Pod, now: float) -> float:
    """Return the seconds until every node has the EndpointSlice of a pod whose gate is open."""
    since = ready_since(pod)
    return SETTLE_S if since is None or not is_ready(pod) else since + SETTLE_S - now


def verdict(pod: Pod, answers: Answers, now: float) -> Verdict | None:
    """Return what the condition is to say now, or None if it has to say nothing yet."""
    state, use_s = answers.state, use_seconds(pod)
    if not answers.exposed:
        return Verdict(Reason.NO_SERVICE, "No Service leads connections to this pod through the proxies of nodes")
    if answers.trouble:
        return Verdict(Reason.NOT_ASKED, f"{answers.trouble}; proxies are not waited for", event_sink.PROXIES_UNKNOWN)
    if not answers.reports.nodes:
        text = "No node's proxy reports (kubeproxy.drainReports is off, or no proxy runs); proxies are not waited for"
        return Verdict(Reason.NO_REPORTS, text, event_sink.PROXIES_UNKNOWN)
    if state.since is not None and not state.waiting:
        return Verdict(Reason.IN_USE, "The proxies of all nodes that report use this pod")
    if now >= waits_since(pod) + use_s:
        return Verdict(Reason.TIMED_OUT, _late(state, use_s), event_sink.PROXIES_LATE)
    if state.since is not None and now - state.since > LATE_S:
        nodes = number_and_names(state.waiting)
        return Verdict(Reason.WAITS, f"The proxies of {nodes} do not use this pod yet; it counts after {use_s:g} s")
    return None


def _late(state: PodDrain, use_s: float) -> str:
    if state.since is None:
        return f"The pod counts although no proxy was asked within {use_s:g} s: no controller led, or others came first"
    return (
        f"The pod counts although the proxies of {number_and_names(state.waiting)} do not use it after {use_s:g} s."
        " Read kubeproxy's log and status there: it may be cut off from the API server, or too old for readiness gates"
    )


def use_seconds(pod: Pod) -> float:
    """Return how long a pod waits at most. An annotation that cannot be read counts as the default; `fault_of` says
    what is wrong with it."""
    return USE_S if fault_of(pod) else seconds_in(pod.metadata.annotations.use_timeout, USE_TIMEOUT, USE_S)


def fault_of(pod: Pod) -> str:
    """Return what is wrong with the pod's annotation, or an empty text."""
    try:
        seconds_in(pod.metadata.annotations.use_timeout, USE_TIMEOUT, USE_S)
    except ValueError as error:
        return f"{error}; the pod waits for {USE_S:g} s at most"
    return ""


def worth_writing(pod: Pod, found: Verdict, now: float) -> bool:
    """Return whether the condition has to be written, because it opens the gate, has another reason, or names other
    nodes than before. A change of the names alone is written every `REWRITE_S` at most."""
    current = condition_of(pod, GATE)
    if found.opens or current is None or current.reason != found.reason:
        return True
    written = timestamps.parse(current.last_probe_time)
    return current.message != found.message and (written is None or now - written >= REWRITE_S)


def patch(pod: Pod, found: Verdict, now: float) -> dict[str, Any]:
    """Return the strategic merge patch of the status of exactly this pod. It leaves all other conditions alone."""
    current, status, moment = condition_of(pod, GATE), str(found.opens), timestamps.seconds(now)
    changed = current is None or current.status != status or current.last_transition_time is None
    condition = {
        "type": GATE,
        "status": status,
        "reason": found.reason.value,
        "message": found.message,
        "lastProbeTime": moment,
        "lastTransitionTime": moment if changed or current is None else current.last_transition_time,
    }
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}


def _before(pod: Pod) -> list[str]:
    """Return the conditions that come before this gate."""
    others = (gate.condition_type for gate in pod.spec.readiness_gates if gate.condition_type != GATE)
    return ["ContainersReady", *others]


def _is_true(pod: Pod, type: str) -> bool:
    condition: PodCondition | None = condition_of(pod, type)
    return condition is not None and condition.status == "True"
