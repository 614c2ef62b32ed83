"""Formats numbers, durations and states as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kubeproxy.observability.status.document import (
    EndpointStatus,
    FrontendStatus,
    KernelFlowsStatus,
    NamedCounters,
    RescueStatus,
    ServiceStatus,
    SourceStatus,
    Standing,
    State,
)

MEANING: Final = {
    State.PROBLEM: "not served, or only in part",
    State.EJECTED: "an endpoint is ejected",
    State.EMPTY: "no endpoints",
    State.WAITING: "does not listen yet",
    State.OK: "served",
}


def duration(seconds: float) -> str:
    """Return a duration as text: ``0.4s``, ``12s``, ``3m20s``, ``5h03m``, ``12d4h``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def size(count: float) -> str:
    """Return a number of bytes as text: ``512 B``, ``1.2 MB``. Units are powers of 1000, as usual for networks."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def several(count: int, one: str, more: str) -> str:
    """Return a number with its noun: ``1 change``, ``2 changes``."""
    return f"{count} {one if count == 1 else more}"


def rate(per_second: float | None) -> str:
    """Return a rate as text: ``12``, ``0.5``, or ``-`` if it is unknown."""
    if per_second is None:
        return "-"
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else f"{per_second:.0f}"


def endpoint(status: EndpointStatus) -> str:
    """Return why an endpoint has its `Standing`, or an empty text for a ready endpoint."""
    match status.standing:
        case Standing.EJECTED:
            return f"{_failure(status)}; next probe in {duration(status.retry_in_s)}"
        case Standing.PROBING if status.noticed_by == "rescue":
            return f"{_failure(status)}; a dial probes it now"
        case Standing.PROBING:
            return f"{_failure(status)}; the next client probes it"
        case Standing.TERMINATING if status.used:
            return "serves while no endpoint is ready"
        case Standing.TERMINATING:
            return "gets no new clients"
        case Standing.DRAINING if status.by_hand:
            return f"taken out by hand: {_for_lack(status)}"
        case Standing.DRAINING:
            left = several(status.open, "connection", "connections")
            return f"a rollout drains it: {_for_lack(status)}, {left} open"
        case Standing.UNREADY:
            return "not ready"
        case Standing.ELSEWHERE:
            return "ready, but traffic policy or topology hints exclude it"
    return ""


_REASONS: Final = {
    "timeout": "did not answer in time",
    "silent": "did not answer in time",
    "refused": "refuses",
    "unreachable": "is unreachable",
}
_NOTICED: Final = {"rescue": ", noticed on the kernel path"}


def _for_lack(status: EndpointStatus) -> str:
    return "gets new clients for lack of another endpoint" if status.used else "gets no new clients"


def _failure(status: EndpointStatus) -> str:
    times = f" ({status.failures} times in a row)" if status.failures > 1 else ""
    since = f", for {duration(status.ejected_for_s)}" if status.ejected_for_s >= 1 else ""
    return f"{_REASONS.get(status.reason, status.reason)}{times}{since}{_NOTICED.get(status.noticed_by, '')}"


def failures(counters: NamedCounters) -> str:
    """Return how many connections failed for each reason, such as `` (3 refused, 1 timeout)``, or an empty text if none
    failed."""
    reasons = {
        "refused": counters.refused,
        "unreachable": counters.unreachable,
        "timeout": counters.silent,
        "no endpoint": counters.no_endpoint,
        "local": counters.unable,
        "loop": counters.looped,
    }
    named = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f" ({named})" if named else ""


def rescue(status: RescueStatus) -> str:
    """Return the rescue's state: ``works for 5m03s; 12 failures reported, 12 packets sent again, 1 endpoint
    ejected``."""
    if status.working:
        state = f"works for {duration(status.since_s)}"
    else:
        reason = f": {status.problem}" if status.problem else ""
        state = f"INERT for {duration(status.since_s)}, clients meet failed endpoints{reason}"
    resent = several(status.resent, "packet", "packets")
    counts = [f"{several(status.reports, 'failure', 'failures')} reported, {resent} sent again"]
    if status.ejected:
        counts.append(f"{several(status.ejected, 'endpoint', 'endpoints')} ejected")
    if status.restarts:
        counts.append(f"{several(status.restarts, 'restart', 'restarts')} of its process")
    return f"{state}; {', '.join(counts)}"


def kernel_flows(status: KernelFlowsStatus) -> str:
    """Return the state of the kernel path's flows: ``12 open by the kernel; bytes are not counted:
    net.netfilter.nf_conntrack_acct is not 1``."""
    if status.problem:
        return f"open connections and bytes of the kernel path are OLD: {status.problem}"
    bytes_ = "bytes are counted" if status.bytes_counted else UNCOUNTED
    return f"{status.open} open by the kernel; {bytes_}"


UNCOUNTED: Final = "bytes are not counted: net.netfilter.nf_conntrack_acct is not 1"


def kernel_traffic(frontend: FrontendStatus) -> str:
    """Return a frontend's traffic on the kernel path: ``3 open, 1.2 kB in, 4.5 MB out``."""
    counters = frontend.counters
    if not frontend.kernel_bytes:
        return f"{counters.kernel_open} open; {UNCOUNTED}"
    return f"{counters.kernel_open} open, {size(counters.kernel_bytes_in)} in, {size(counters.kernel_bytes_out)} out"


def note(service: ServiceStatus) -> str:
    """Return the most important fact about a Service, or an empty text if the Service is healthy."""
    if service.problems:
        more = f" (and {len(service.problems) - 1} more)" if len(service.problems) > 1 else ""
        return service.problems[0] + more
    for frontend in service.frontends:
        for status in frontend.endpoints:
            if status.standing in (Standing.EJECTED, Standing.PROBING):
                return f"{status.address} {endpoint(status)}"
    for frontend in service.frontends:
        if frontend.when_empty == "refuse" and not any(status.used for status in frontend.endpoints):
            port = f"port {frontend.port}: " if frontend.port else ""
            return f"{port}no endpoints; clients are refused"
    return MEANING[State.WAITING] if service.state is State.WAITING else ""


def endpoint_count(service: ServiceStatus) -> str:
    """Return the number of endpoints: ``3``, or ``2/3`` if one is ejected."""
    used = {status.address: status for frontend in service.frontends for status in frontend.endpoints if status.used}
    usable = sum(
        status.standing in (Standing.READY, Standing.TERMINATING, Standing.DRAINING) for status in used.values()
    )
    return str(usable) if usable == len(used) else f"{usable}/{len(used)}"


def listener(status: FrontendStatus) -> str:
    """Return the name of a frontend: ``http TCP IPv4``, ``dns UDP IPv6 (external)``."""
    scope = "" if status.scope == "cluster" else f" ({status.scope})"
    return f"{status.port + ' ' if status.port else ''}{status.protocol} IPv{status.family}{scope}"


def moment(at: float) -> str:
    """Return a time as text: ``2026-01-02T04:05:06Z``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def source(status: SourceStatus) -> str:
    """Return the state of a source, such as ``up to date``, ``behind by 12s`` or ``not listed yet``, and its number of
    faults."""
    if status.stale_since is not None:
        text = f"not listed yet, serving the state of an earlier run, stale since {moment(status.stale_since)}"
    elif not status.listed:
        text = "not listed yet"
    else:
        text = f"behind by {duration(status.behind_s)}" if status.behind_s > 0 else "up to date"
    if status.faults:
        text += f", {status.faults} faulty"
    if status.warnings:
        text += f", {several(status.warnings, 'warning', 'warnings')}"
    if status.left_out:
        text += f", {status.left_out} left out"
    return text
