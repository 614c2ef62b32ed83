"""Decides which pods wait at their readiness gate, and what the gate's condition says. It is pure; times are Unix
seconds.

The condition says whether every node's proxy has begun to use the pod. Once it is True it stays True, as with the gates
of cloud load balancers. So a pod that is unready for a while becomes ready again without the proxies, and proxies that
fail later do not make running pods unready.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kubeproxy.controllers import event_reporter
from kubeproxy.controllers.api_types import Pod, PodCondition
from kubeproxy.controllers.pod_state import condition_of, is_active, is_ready, ready_since
from kubeproxy.controllers.proxy_requests.reports import PodDrain, Reports, number_and_names
from kubeproxy.controllers.proxy_requests.timeouts import USE_S, USE_TIMEOUT, seconds_in
from kubeproxy.kubernetes import timestamps

GATE: Final = "kubeproxy/in-use"
"""The type of the condition, which a pod lists in spec.readinessGates."""
SETTLE_S: Final = 10.0
"""How long a request stays after the gate has opened. By then, every node has the EndpointSlice that lists the pod as
ready."""
LATE_S: Final = 5.0
"""A node is named in the condition if it does not use the pod after this time."""
REWRITE_S: Final = 10.0
"""The shortest time between two writes of a condition that names nodes."""


class Reason(StrEnum):
    """The reason in the gate's condition."""

    IN_USE = "InUse"
    NO_SERVICE = "NoService"
    NO_REPORTS = "NoReports"
    NOT_ASKED = "ProxiesUnknown"
    TIMED_OUT = "TimedOut"
    WAITS = "WaitingForProxies"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of the condition of a pod's gate."""

    reason: Reason
    message: str
    event: str = ""
    """The reason of a Warning Event about the pod, or an empty text if no Event is to be reported."""

    @property
    def opens(self) -> bool:
        """Return whether the status of the condition is True."""
        return self.reason is not Reason.WAITS


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known about one waiting pod."""

    reports: Reports
    exposed: bool
    """Whether the proxies send the pod connections of any Service."""
    state: PodDrain
    """The state of the pod according to the nodes' reports."""
    trouble: str = ""
    """Why there can be no request about the pod, or an empty text."""


def has_gate(pod: Pod) -> bool:
    """Return whether a pod has the readiness gate of the proxies."""
    return any(gate.condition_type == GATE for gate in pod.spec.readiness_gates)


def waits(pod: Pod) -> bool:
    """Return whether only this gate keeps a pod from being ready.

    The other gates have to be open first, because they may mean that the pod must not get connections yet.
    """
    if not has_gate(pod) or not is_active(pod) or not pod.status.pod_ips:
        return False
    return not _is_true(pod, GATE) and all(_is_true(pod, type) for type in _before(pod))


def waits_since(pod: Pod) -> float:
    """Return when the pod began to wait, in Unix seconds. It waits since its containers are ready and its other gates
    are open."""
    known = (condition_of(pod, type) for type in _before(pod))
    times = (timestamps.parse(each.last_transition_time) for each in known if each is not None)
    begun = [at for at in times if at is not None]
    return max(begun, default=timestamps.parse(pod.metadata.creation_timestamp) or 0.0)


def needs_request(pod: Pod, now: float) -> bool:
    """Return whether a request to use the pod is needed: its containers are ready, and its gate is closed or was opened
    less than `SETTLE_S` seconds ago."""
    if waits(pod):
        return True
    ready = is_active(pod) and has_gate(pod) and all(_is_true(pod, type) for type in (*_before(pod), GATE))
    return ready and settles_in(pod, now) > 0


def settles_in(pod: Pod, now: float) -> float:
    """Return the seconds until the request about a pod with an open gate is no longer needed."""
    since = ready_since(pod)
    return SETTLE_S if since is None or not is_ready(pod) else since + SETTLE_S - now


def verdict(pod: Pod, answers: Answers, now: float) -> Verdict | None:
    """Return the content for the condition of a waiting pod, or None if it is too early for one."""
    state, use_s = answers.state, use_seconds(pod)
    if not answers.exposed:
        return Verdict(Reason.NO_SERVICE, "No Service sends connections to this pod through the node proxies")
    if answers.trouble:
        return Verdict(
            Reason.NOT_ASKED, f"{answers.trouble}; proxies are not waited for", event_reporter.PROXIES_UNKNOWN
        )
    if not answers.reports.nodes:
        text = "No node's proxy reports (kubeproxy.drainReports is off, or no proxy runs); proxies are not waited for"
        return Verdict(Reason.NO_REPORTS, text, event_reporter.PROXIES_UNKNOWN)
    if state.since is not None and not state.waiting:
        return Verdict(Reason.IN_USE, "The proxies of all nodes that report use this pod")
    if now >= waits_since(pod) + use_s:
        return Verdict(Reason.TIMED_OUT, _late(state, use_s), event_reporter.PROXIES_LATE)
    if state.since is not None and now - state.since > LATE_S:
        nodes = number_and_names(state.waiting)
        return Verdict(Reason.WAITS, f"The proxies of {nodes} do not use this pod yet; it counts after {use_s:g} s")
    return None


def _late(state: PodDrain, use_s: float) -> str:
    if state.since is None:
        return (
            f"The pod counts although no proxy was asked within {use_s:g} s: no controller was the leader, or other"
            " pods came first"
        )
    return (
        f"The pod counts although the proxies of {number_and_names(state.waiting)} do not use it after {use_s:g} s."
        " Read kubeproxy's log and status there: it may be cut off from the API server, or too old for readiness gates"
    )


def use_seconds(pod: Pod) -> float:
    """Return how long a pod waits at most, in seconds. If the annotation is invalid, return the default; `fault_of`
    describes the fault."""
    return USE_S if fault_of(pod) else seconds_in(pod.metadata.annotations.use_timeout, USE_TIMEOUT, USE_S)


def fault_of(pod: Pod) -> str:
    """Return a message about the pod's annotation if it is invalid, or an empty text."""
    try:
        seconds_in(pod.metadata.annotations.use_timeout, USE_TIMEOUT, USE_S)
    except ValueError as error:
        return f"{error}; the pod waits for {USE_S:g} s at most"
    return ""


def worth_writing(pod: Pod, found: Verdict, now: float) -> bool:
    """Return whether the condition has to be written: it opens the gate, or its reason or message has changed. If only
    the message has changed, the last write must be `REWRITE_S` seconds ago."""
    current = condition_of(pod, GATE)
    if found.opens or current is None or current.reason != found.reason:
        return True
    written = timestamps.parse(current.last_probe_time)
    return current.message != found.message and (written is None or now - written >= REWRITE_S)


def patch(pod: Pod, found: Verdict, now: float) -> dict[str, Any]:
    """Return the strategic merge patch that sets this condition in the status of exactly this pod."""
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
    """Return the types of the conditions that must be True before this gate is examined."""
    others = (gate.condition_type for gate in pod.spec.readiness_gates if gate.condition_type != GATE)
    return ["ContainersReady", *others]


def _is_true(pod: Pod, type: str) -> bool:
    condition: PodCondition | None = condition_of(pod, type)
    return condition is not None and condition.status == "True"
