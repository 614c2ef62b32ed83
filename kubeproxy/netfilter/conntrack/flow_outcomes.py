"""Finds out how and when a flow of the kernel path ended.

The kernel keeps the entry of a connection for some time after its end (nf_conntrack_tcp_timeout_time_wait, by default
120 s), and records times only if net.netfilter.nf_conntrack_timestamp is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeproxy.netfilter.conntrack.flow_records import SEEN_REPLY, FlowRecord
from kubeproxy.netfilter.conntrack.flow_totals import CLOSE, LAST_ACK, SYN_RECV, SYN_SENT, TIME_WAIT

_LINGERING: Final = {LAST_ACK: "last_ack", TIME_WAIT: "time_wait", CLOSE: "close"}
"""The TCP states after the end of a connection, each with the name of its timeout."""


def outcome(flow: FlowRecord) -> str:
    """Return how a flow has ended, as a word for the access log (`kubeproxy.dataplane.interface.Ended.reason`)."""
    answered, state = bool(flow.status & SEEN_REPLY), flow.tcp_state
    if state in (TIME_WAIT, LAST_ACK):
        return "closed"
    if state == CLOSE:
        return "reset" if answered else "refused"
    if state == SYN_SENT:
        return "timeout"
    if flow.remaining_s:
        return "deleted"
    if not answered:
        return "timeout"
    return "unfinished" if state == SYN_RECV else "idle"


def lingering_s(timeouts: Mapping[str, int]) -> Mapping[int, int]:
    """Return how many seconds the kernel keeps a connection after its last packet, by TCP state.

    `timeouts` has the timeouts in seconds by nft's names of states (`RuleSet.tcp_timeouts`, or `sysctls.tcp_timeouts`).
    """
    return {state: timeouts[name] for state, name in _LINGERING.items()}


def span(flow: FlowRecord, lingering: Mapping[int, int]) -> tuple[float, float] | None:
    """Return when a flow began and ended, in Unix seconds, or None if the kernel has not recorded times.

    A connection ended with its last packet, so the time for which the kernel kept the entry afterwards is subtracted.
    The kernel may have deleted the entry earlier, for example because a new connection came from the same port; then
    less is subtracted.
    """
    if flow.started_ns is None or flow.stopped_ns is None:
        return None
    began, ended = flow.started_ns / 1e9, flow.stopped_ns / 1e9
    if flow.tcp_state is not None and flow.tcp_state in lingering:
        ended -= max(0, lingering[flow.tcp_state] - flow.remaining_s)
    return began, max(began, ended)
