"""`kubeproxy.rescue.copies` and `kubeproxy.rescue.resends`: what is kept, what is sent again, and when."""

from __future__ import annotations

import pytest

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.rescue.copies import (
    BYTES_MAX,
    COPIES_MAX,
    KEEP_S,
    RETRANSMITTED_S,
    SEGMENT_COPIES,
    SEGMENT_S,
    SEGMENTS_AT_ONCE,
    Copies,
)
from kubeproxy.rescue.packets import Refusal, Refused, Side, Syn, Unreachable, packed, parse
from kubeproxy.rescue.protocol import Failed, Freed, FreedFlow, Reason
from kubeproxy.rescue.resends import AWAITED_S, DATAGRAM_S, DATAGRAMS_MAX, DELAYS_S, QUIET_S, Packet, Resends
from tests.rescue.log_messages import LINK, message, read
from tests.rescue.test_packets import CLIENT, CLIENT6, POD, SERVICE, SERVICE6, SYN, ip, tcp

ENDPOINT = Side(packed(POD), 8080)
TARGET = Target(Address(POD), 8080)
UNKNOWN = Side(packed(CLIENT), 1), Side(packed(SERVICE), 80)


def syn(number: int = 0, *, sequence: int | None = None) -> Syn:
    packet = ip(CLIENT, SERVICE, 6, tcp(SYN, source=1000 + number % 60_000, sequence=sequence or 5000 + number))
    found = parse(packet)
    assert isinstance(found, Syn)
    return found


def log(*syns: Syn) -> bytes:
    """One read from the packet log."""
    return read(*(message(each.packet) for each in syns))


def copied(resends: Resends, *syns: Syn, at: float) -> None:
    """Each in a read of its own."""
    for each in syns:
        resends.copied(log(each), 1, at)


def sides(of: Syn) -> tuple[Side, Side]:
    return of.client, of.service


def refused(resends: Resends, of: Syn, at: float) -> Failed | None:
    """Both reports of a refusal; the failure, if one is reported."""
    failed = resends.refused(Refusal(ENDPOINT, of.client, of.last), at)
    resends.refused_client(Refused(of.client, of.service, of.last), at)
    return failed


def counts(resends: Resends) -> RescueCounts:
    return resends.counts(resent=0, unsent=0, overflows=0)


def freed(*of: Syn) -> Freed:
    flows = tuple(
        FreedFlow(Address(CLIENT), each.client.port, Address(SERVICE), 80, Address(CLIENT), each.client.port, None)
        for each in of
    )
    return Freed(Protocol.TCP, TARGET, flows)


def sequences(packets: list[Packet]) -> list[int]:
    found = [parse(packet.data) for packet in packets]
    return [each.sequence for each in found if isinstance(each, Syn)]


def test_a_refused_syn_is_sent_again_at_once() -> None:
    resends, first = Resends(), syn()
    copied(resends, first, at=100.0)
    assert refused(resends, first, 100.001) == Failed(Protocol.TCP, TARGET, Reason.REFUSED)
    (packet,) = resends.due(100.001)
    assert sequences([packet]) == [first.sequence]
    assert packet.by_way_of == packed(POD)
    assert packet.link == LINK, "it comes by the interface by which the client's came"
    assert resends.due(101.0) == []


def test_attempts_become_rarer_and_end() -> None:
    """Two dead endpoints must not pass a SYN to each other without end."""
    resends, first = Resends(), syn()
    copied(resends, first, at=100.0)
    now, waits = 100.0, []
    for _ in range(50):
        refused(resends, first, now)
        if resends.next_at is None:
            break
        waits.append(resends.next_at - now)
        now = resends.next_at
        assert len(resends.due(now)) == 1
        copied(resends, first, at=now)  # the copy of our own packet, from the output hook
    assert waits == pytest.approx(DELAYS_S)
    assert sum(waits) < 1.0, "then the client repeats it"
    assert counts(resends).given_up == 1


def test_the_clients_own_retransmission_begins_anew() -> None:
    resends, first = Resends(), syn()
    copied(resends, first, at=100.0)
    for _ in range(20):
        refused(resends, first, 100.0)
        resends.due(100.9)
    copied(resends, first, at=102.0)
    refused(resends, first, 102.0)
    assert len(resends.due(102.0)) == 1


def test_a_port_used_again_replaces_the_copy() -> None:
    resends, old, new = Resends(), syn(sequence=1), syn(sequence=2)
    copied(resends, old, at=100.0)
    copied(resends, new, at=100.1)
    refused(resends, old, 100.2)
    assert resends.due(100.2) == []
    assert counts(resends).unknown == 1
    refused(resends, new, 100.2)
    assert sequences(resends.due(100.2)) == [2]


def test_failures_of_an_endpoint_are_reported_once_in_a_while() -> None:
    resends = Resends()
    many = [syn(number) for number in range(100)]
    copied(resends, *many, at=100.0)
    reports = [refused(resends, each, 100.0) for each in many]
    assert [report for report in reports if report] == [Failed(Protocol.TCP, TARGET, Reason.REFUSED)]
    assert len(resends.due(100.0)) == 100, "and each SYN is sent again"
    assert refused(resends, many[0], 100.0 + 2 * QUIET_S) is not None


def test_unanswered_syns_wait_until_their_flows_are_freed() -> None:
    resends, first, second, other = Resends(), syn(1), syn(2), syn(3)
    copied(resends, first, second, other, at=100.0)
    error = Unreachable(Protocol.TCP, first.client, ENDPOINT, None)
    assert resends.unreachable(error, 100.0) == Failed(Protocol.TCP, TARGET, Reason.UNREACHABLE)
    assert resends.due(100.0) == []
    assert resends.freed(freed(first, second, syn(4)), 100.3) == []
    assert sequences(resends.due(100.3)) == [first.sequence, second.sequence]
    assert resends.next_at == 100.3 + AWAITED_S, "the kernel may be collecting the copy of the other one"
    assert resends.due(100.3 + AWAITED_S) == []
    assert counts(resends).unknown == 1


def test_a_packet_that_is_sent_again_to_no_avail_is_reported_soon() -> None:
    """Its flow would lead the client's own retransmission to the same endpoint."""
    resends, error = Resends(), Unreachable(Protocol.TCP, Side(packed(CLIENT), 4000), ENDPOINT, None)
    failed = resends.unreachable(error, 100.0)
    assert failed is not None
    for after_s in (0.25, 0.75):
        assert resends.unreachable(error, 100.0 + after_s * QUIET_S) is None
    due_at = resends.next_at
    assert due_at == 100.0 + QUIET_S
    assert resends.late_reports(100.0 + 0.9 * QUIET_S) == []
    assert resends.late_reports(100.0 + QUIET_S) == [failed]
    assert resends.late_reports(100.0 + 2 * QUIET_S) == []
    assert resends.next_at is None
    assert resends.unreachable(error, 100.0 + 1.5 * QUIET_S) is None, "quiet again"


def test_a_copy_that_comes_after_its_flow_was_deleted_is_sent() -> None:
    resends, late = Resends(), syn(1)
    assert resends.freed(freed(late), 100.0) == []
    copied(resends, late, at=100.0 + AWAITED_S / 2)
    assert sequences(resends.due(100.0 + AWAITED_S)) == [late.sequence]
    assert counts(resends).unknown == 0


def test_datagrams_wait_until_their_flows_are_freed() -> None:
    resends = Resends()
    client = Side(packed(CLIENT), 4000)
    assert resends.unreachable(Unreachable(Protocol.UDP, client, ENDPOINT, b"one"), 100.0) is not None
    assert resends.unreachable(Unreachable(Protocol.UDP, Side(packed(CLIENT), 4001), ENDPOINT, b"two"), 100.0) is None
    assert resends.unreachable(Unreachable(Protocol.UDP, client, ENDPOINT, None), 100.0) is None
    flow = FreedFlow(Address("192.0.2.9"), 7777, Address(SERVICE), 53, Address(CLIENT), 4000, link=7)
    (packet,) = resends.freed(Freed(Protocol.UDP, TARGET, (flow,)), 100.1)
    assert packet.data.endswith(b"one")
    assert packet.link == 7
    assert packet.data[12:20] == packed("192.0.2.9") + packed(SERVICE), "the client's own address, not the masquerade's"
    assert packet.data[20:24] == (7777).to_bytes(2, "big") + (53).to_bytes(2, "big")
    assert resends.freed(Freed(Protocol.UDP, TARGET, (flow,)), 100.1) == [], "once"
    late = flow._replace(peer_port=4001)
    assert resends.freed(Freed(Protocol.UDP, TARGET, (late,)), 100.0 + DATAGRAM_S + 0.1) == [], "too late"


def test_a_datagram_of_a_client_without_a_way_is_not_sent() -> None:
    """By which interface it came is not known, so neither is which policies it has to pass."""
    resends = Resends()
    assert resends.unreachable(Unreachable(Protocol.UDP, Side(packed(CLIENT), 4000), ENDPOINT, b"x"), 100.0) is not None
    flow = FreedFlow(Address(CLIENT), 4000, Address(SERVICE), 53, Address(CLIENT), 4000, link=None)
    assert resends.freed(Freed(Protocol.UDP, TARGET, (flow,)), 100.1) == []
    assert counts(resends).unknown == 1


def test_floods_do_not_grow_it() -> None:
    resends = Resends()
    batch = log(*(syn(number) for number in range(64)))
    for number in range(2 * COPIES_MAX // 64):
        resends.copied(batch, 64, 100.0 + number / 1000)
        assert counts(resends).held <= COPIES_MAX
    assert counts(resends).held > COPIES_MAX - SEGMENT_COPIES
    assert counts(resends).copied == 2 * COPIES_MAX
    for number in range(3 * DATAGRAMS_MAX):
        resends.unreachable(Unreachable(Protocol.UDP, Side(packed(CLIENT), number), ENDPOINT, b"x"), 100.0)
    flows = tuple(
        FreedFlow(Address(CLIENT), 1, Address(SERVICE), 53, Address(CLIENT), number, 0)
        for number in range(3 * DATAGRAMS_MAX)
    )
    assert len(resends.freed(Freed(Protocol.UDP, TARGET, flows), 100.0)) == DATAGRAMS_MAX
    resends.forget(101.0 + KEEP_S)
    assert counts(resends).held == 0


def test_long_syns_are_bounded_by_bytes() -> None:
    copies = Copies()
    packet = ip(CLIENT, SERVICE, 6, tcp(SYN) + bytes(1400))
    first = parse(packet)
    assert isinstance(first, Syn)
    data = log(first)
    for number in range(BYTES_MAX // len(data) + 100):
        copies.add(data, 1, 100.0 + number / 10_000)
        assert len(copies) * len(data) <= BYTES_MAX
    copies.clear()
    assert len(copies) == 0
    assert copies.of(*sides(first)) is None


def test_copies_are_read_when_one_is_needed_and_no_further_than_to_it() -> None:
    copies, many = Copies(), [syn(number) for number in range(8 * SEGMENT_COPIES)]
    for begin in range(0, len(many), 64):
        copies.add(log(*many[begin : begin + 64]), 64, 100.0)
    assert copies.unread == 8
    found = copies.of(*sides(many[-1]))
    assert found is not None
    assert found.syn == many[-1]
    assert copies.unread == 7
    first = many[SEGMENT_COPIES]
    old = copies.of(first.client, first.service)
    assert old is not None
    assert old.syn == first
    assert copies.unread == 7 - SEGMENTS_AT_ONCE - 1, "one of the rest has the bytes"
    copies.add(log(*many[:SEGMENT_COPIES]), SEGMENT_COPIES, 100.05)
    assert copies.of(*UNKNOWN) is None
    assert copies.unread == 0


def test_an_unknown_syn_does_not_have_all_copies_read_at_once() -> None:
    copies = Copies()
    for begin in range(0, 3 * SEGMENTS_AT_ONCE * SEGMENT_COPIES, SEGMENT_COPIES):
        copies.add(log(*(syn(begin + number) for number in range(SEGMENT_COPIES))), SEGMENT_COPIES, 100.0)
    for left in (2, 1, 0, 0):
        assert copies.of(*UNKNOWN) is None
        assert copies.unread == left * SEGMENTS_AT_ONCE
    assert copies.of(*sides(syn(7))) is not None


@pytest.mark.parametrize(
    "packet",
    [
        ip(CLIENT, SERVICE, 6, tcp(SYN, sequence=77) + b"data"),
        ip(CLIENT, SERVICE, 6, tcp(SYN, sequence=77), options=bytes(8)),
        ip(CLIENT6, SERVICE6, 6, tcp(SYN, sequence=77)),
    ],
    ids=["data", "IPv4 options", "IPv6"],
)
def test_an_unusual_syn_is_found(packet: bytes) -> None:
    unusual = parse(packet)
    assert isinstance(unusual, Syn)
    copies = Copies()
    copies.add(read(message(packet)), 1, 100.0)
    copies.add(log(syn()), 1, 100.01)
    for found in (copies.of(*sides(unusual)), copies.of(unusual.client, unusual.service)):
        assert found is not None
        assert found.syn == unusual


def test_a_segment_ends_by_time() -> None:
    copies = Copies()
    for number in range(10):
        copies.add(log(syn(number)), 1, 100.0 + number * 1.5 * SEGMENT_S)
    assert copies.unread == 10
    copies.forget(100.0 + 8 * SEGMENT_S + KEEP_S)
    assert len(copies) == copies.unread == 4


def test_a_retransmission_that_has_not_been_read_counts() -> None:
    """The first copy is known already. What has come since is read all the same."""
    copies, first = Copies(), syn()
    copies.add(log(first), 1, 100.0)
    known = copies.of(*sides(first))
    assert known is not None
    known.attempts, known.tried_at = 8, 100.0
    copies.add(log(first), 1, 100.0 + RETRANSMITTED_S - 0.01)
    assert copies.of(*sides(first)) is known, "an echo of our own attempt"
    copies.add(log(first), 1, 101.0)
    anew = copies.of(*sides(first))
    assert anew is not None
    assert (anew.attempts, anew.at) == (0, 101.0)
    assert copies.of(*sides(first)) is anew


def test_an_echo_does_not_use_up_hops() -> None:
    """What is sent again is made of the client's own packet: our last attempt has one hop less."""
    resends, first = Resends(), syn()
    copied(resends, first, at=100.0)
    sent = []
    for number in range(4):
        at = 100.0 + number / 10
        refused(resends, first, at)
        (packet,) = resends.due(at + 0.05)
        sent.append(packet.data)
        echo = parse(packet.data)
        assert isinstance(echo, Syn)
        copied(resends, echo, at=at + 0.06)
    assert len(set(sent)) == 1


def test_a_port_used_again_in_the_same_read() -> None:
    copies, old, new = Copies(), syn(sequence=1), syn(sequence=2)
    copies.add(log(old, new), 2, 100.0)
    found = copies.of(old.client, old.service)
    assert found is not None
    assert found.syn == new


def test_nothing_is_kept_after_a_stop() -> None:
    resends, first = Resends(), syn()
    copied(resends, first, at=100.0)
    refused(resends, first, 100.0)
    resends.clear()
    assert resends.due(200.0) == []
    assert counts(resends).held == 0


def test_another_packet_with_the_same_sequence_number_is_not_sent() -> None:
    """A client may give it to a packet to another service, which this node has dropped."""
    resends, first, other = Resends(), syn(), syn(1, sequence=5000)
    assert (first.last, first.client) != (other.last, other.client)
    assert first.last == other.last
    copied(resends, first, other, at=100.0)
    refused(resends, first, 100.0)
    (packet,) = resends.due(100.0)
    assert parse(packet.data) == first._replace(packet=packet.data)
    resends.refused_client(Refused(first.client, first.service, first.last + 1), 100.0)
    assert counts(resends).unknown == 1


def test_a_syn_that_goes_round_has_its_attempts_once() -> None:
    """Each round comes from another port, with the same sequence number."""
    resends = Resends()
    rounds = [syn(number, sequence=7) for number in range(63)]
    copied(resends, *rounds, at=100.0)
    for number in range(20):
        for each in rounds:
            refused(resends, each, 100.0 + number / 20)
    assert len(resends.due(110.0)) == len(DELAYS_S)
    copied(resends, rounds[5], at=110.0)
    refused(resends, rounds[5], 110.0)
    assert len(resends.due(110.0)) == 1, "its numbers are free again"
