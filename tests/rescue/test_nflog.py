"""`kubeproxy.rescue.nflog`: it tells copies and reports apart, and counts them."""

from __future__ import annotations

import struct

import pytest

from kubeproxy.netfilter.nftables.rescue import COPIES_PER_MESSAGE, PACKET_BYTES, REPORT_PREFIX
from kubeproxy.rescue import nflog
from tests.rescue.log_messages import LINK, message, read, report
from tests.rescue.test_packets import ACK, CLIENT, CLIENT6, POD, RST, SERVICE, SERVICE6, SYN, ip, tcp

COPY = ip(CLIENT, SERVICE, 6, tcp(SYN, options=bytes(20)))
RESET = ip(POD, CLIENT, 6, tcp(RST | ACK, sequence=0))


def test_copies_and_a_report_in_one_read() -> None:
    other = ip(CLIENT6, SERVICE6, 6, tcp(SYN) + b"odd")
    data = read(message(COPY), message(other, own=True), report(RESET))
    assert nflog.count(data) == 3
    assert nflog.may_report(data)
    assert list(nflog.packets(data)) == [(False, COPY), (False, other), (True, RESET)]
    assert list(nflog.copies(data)) == [(LINK, COPY), (0, other)]


def test_copies_alone_have_no_report() -> None:
    data = read(*[message(COPY)] * 5)
    assert not nflog.may_report(data)
    assert nflog.count(data) == len(list(nflog.copies(data))) == 5
    assert nflog.count(b"") == 0


@pytest.mark.parametrize("text", [REPORT_PREFIX, "another rule"])
def test_a_client_cannot_forge_a_report(text: str) -> None:
    """The text is in the packet, or it is that of another rule: the packet is a copy."""
    forged = ip(CLIENT, SERVICE, 6, tcp(SYN) + report(RESET))
    data = read(message(forged), message(COPY, prefix=text if text != REPORT_PREFIX else None))
    assert nflog.may_report(data), "it costs a look"
    assert [each.reported for each in nflog.packets(data)] == [False, False]
    assert list(nflog.copies(data)) == [(LINK, forged), (LINK, COPY)]


def test_a_cut_message_is_read_as_far_as_it_goes() -> None:
    data = read(message(COPY), report(RESET))
    for length in range(len(data)):
        found = list(nflog.packets(data[:length]))
        assert [packet for _, packet in nflog.copies(data[:length])] == [
            each.packet for each in found if not each.reported
        ]
        assert nflog.count(data[:length]) >= len(found)


def test_a_message_has_room_for_as_many_copies_as_the_rules_collect() -> None:
    longest_usual = ip(CLIENT6, SERVICE6, 6, tcp(SYN, options=bytes(40)))
    assert len(message(longest_usual)) * COPIES_PER_MESSAGE <= nflog.BUFFER_BYTES
    assert len(report(bytes(PACKET_BYTES))) + nflog.BUFFER_BYTES < nflog.READ_BYTES


def test_the_group_is_in_the_request() -> None:
    request = nflog.bind_request(27_504, packet_bytes=128, threshold=64, sequence=1)
    assert struct.unpack_from(">H", request, 18) == (27_504,)
