"""How and when a flow has ended."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kubeproxy.netfilter.conntrack.flow_outcomes import lingering_s, outcome, span
from kubeproxy.netfilter.conntrack.flow_records import DELETE, DST_NAT, SEEN_REPLY, FlowRecord, records
from kubeproxy.netfilter.conntrack.sysctls import tcp_timeouts
from tests.netfilter.conntrack.flow_messages import flow

S = 1_000_000_000


def ended(
    state: int | None, *, answered: bool = True, left: int | None = None, times: tuple[int, ...] = ()
) -> FlowRecord:
    status = DST_NAT | (SEEN_REPLY if answered else 0)
    protocol = socket.IPPROTO_UDP if state is None else socket.IPPROTO_TCP
    (found,) = records(flow(state=state, status=status, left=left, times=times, end=True, protocol=protocol), DELETE)
    return found


@pytest.mark.parametrize(
    ("flow_", "expected"),
    [
        (ended(7), "closed"),
        (ended(7, left=80), "closed"),
        (ended(6), "closed"),
        (ended(8), "reset"),
        (ended(8, answered=False, left=100), "refused"),
        (ended(1, answered=False), "timeout"),
        (ended(1, answered=False, left=1), "timeout"),
        (ended(2), "unfinished"),
        (ended(3), "idle"),
        (ended(5), "idle"),
        (ended(3, left=9), "deleted"),
        (ended(None), "idle"),
        (ended(None, left=9), "deleted"),
        (ended(None, answered=False), "timeout"),
    ],
)
def test_the_outcome_follows_from_the_last_state(flow_: FlowRecord, expected: str) -> None:
    assert outcome(flow_) == expected


def test_a_connection_ends_with_its_last_packet() -> None:
    lingering = {6: 30, 7: 120, 8: 10}
    times = (1000 * S, 1200 * S)
    assert span(ended(7, times=times), lingering) == (1000.0, 1080.0)
    assert span(ended(7, times=times, left=100), lingering) == (1000.0, 1180.0)
    assert span(ended(8, times=times), lingering) == (1000.0, 1190.0)
    assert span(ended(3, times=times), lingering) == (1000.0, 1200.0)
    assert span(ended(7, times=(1000 * S, 1100 * S)), lingering) == (1000.0, 1000.0), "never before it began"
    assert span(ended(8, times=times, left=100), lingering) == (1000.0, 1200.0), "a state's time from before"
    assert span(ended(None, times=times), lingering) == (1000.0, 1200.0)
    assert span(ended(7), lingering) is None


def test_settings_of_the_host_count(tmp_path: Path) -> None:
    (tmp_path / "nf_conntrack_tcp_timeout_time_wait").write_text("60\n")
    (tmp_path / "nf_conntrack_tcp_timeout_close").write_text("many\n")
    assert lingering_s(tcp_timeouts(directory=tmp_path)) == {6: 30, 7: 60, 8: 10}
