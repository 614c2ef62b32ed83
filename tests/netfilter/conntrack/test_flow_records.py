"""Records of translated flows: the same values by layout as attribute by attribute, whatever their shape."""

from __future__ import annotations

import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.netfilter.conntrack import flow_records
from kubeproxy.netfilter.conntrack.flow_records import (
    DELETE,
    DST_NAT,
    LAYOUTS,
    NEW,
    NFGEN,
    FlowRecord,
    end_of_dump,
    records,
    walked,
)
from kubeproxy.netfilter.netlink.messages import HEADER
from tests.netfilter.conntrack.flow_messages import STATUS, attribute, done, flow, one_way


@pytest.fixture(autouse=True)
def _no_layouts() -> None:
    flow_records._layouts.clear()


def test_every_value_of_a_record() -> None:
    data = flow(times=(5_000_000_000, 9_000_000_000), left=None, end=True, state=7)
    expected = FlowRecord(
        (b"\x06", bytes([10, 96, 0, 10]), b"\x00\x50", bytes([10, 3, 0, 2]), b"\x1f\x90"),
        bytes([10, 2, 0, 2]),
        b"\xc3\x50",
        b"\x00\x00\x00\x07",
        STATUS,
        7,
        0,
        1000,
        2000,
        5_000_000_000,
        9_000_000_000,
    )
    for _ in range(2):  # the second time by its layout
        assert list(records(data, DELETE)) == [expected]
    assert list(records(data, NEW)) == []


def test_what_the_kernel_does_not_say_is_none() -> None:
    data = flow(protocol=socket.IPPROTO_UDP, state=None, counts=None, left=30)
    for _ in range(2):
        (found,) = records(data, NEW)
        assert (found.tcp_state, found.bytes_in, found.bytes_out, found.started_ns) == (None, None, None, None)
        assert (found.route[0], found.remaining_s) == (b"\x11", 30)


@given(
    st.lists(
        st.builds(
            flow,
            source=st.sampled_from([("10.2.0.2", 1), ("10.2.0.9", 65535)]),
            protocol=st.sampled_from([socket.IPPROTO_TCP, socket.IPPROTO_UDP]),
            state=st.one_of(st.none(), st.integers(0, 12)),
            number=st.integers(0, 2**32 - 1),
            counts=st.one_of(st.none(), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))),
            left=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
            times=st.sampled_from([(), (1,), (1, 2)]),
            end=st.just(False),
            more=st.sampled_from([b"", attribute(8, b"mark"), attribute(24, b"labels of some length")]),
        ),
        max_size=8,
    )
)
def test_a_layout_reads_what_walking_reads(messages: list[bytes]) -> None:
    for message in messages:
        assert list(records(message, NEW)) == [walked(message[HEADER.size :])]
    assert len(list(records(b"".join(messages), NEW))) == len(messages)


def test_both_families() -> None:
    six = flow(("fd00:2::2", 50000), ("fd00:96::1", 80), ("fd00:3::2", 8080))
    four = flow()
    found = list(records(six + four + done(), NEW))
    assert [len(each.source) for each in found] == [16, 4]
    assert found[0].route[3] == socket.inet_pton(socket.AF_INET6, "fd00:3::2")


@pytest.mark.parametrize(
    "message",
    [
        flow(status=STATUS & ~DST_NAT),
        flow(protocol=socket.IPPROTO_ICMP),
        flow(protocol=socket.IPPROTO_SCTP),
        flow()[:-4],
        flow()[:18],
        done(),
    ],
    ids=["not translated", "ICMP", "SCTP", "cut", "short", "end"],
)
def test_all_else_is_left_out(message: bytes) -> None:
    list(records(flow(), NEW))  # a layout is known
    assert list(records(message, NEW)) == []


def test_a_tuple_of_a_zone_is_left_out() -> None:
    original = one_way(1, ("10.2.0.2", 1), ("10.96.0.10", 80), 6, attribute(3, b"\x00\x01"))
    reply = one_way(2, ("10.3.0.2", 8080), ("10.2.0.2", 1), 6)
    assert walked(NFGEN.pack(socket.AF_INET, 0, 0) + original + reply + attribute(3, b"\x00\x00\x00\x22")) is None


def test_layouts_are_bounded() -> None:
    for length in range(2 * LAYOUTS):
        assert len(list(records(flow(more=attribute(24, bytes(length * 4))), NEW))) == 1
    assert sum(map(len, flow_records._layouts.values())) == LAYOUTS


def test_the_end_of_a_dump() -> None:
    assert end_of_dump(flow()) is None
    assert end_of_dump(flow() + done()) == 0
    assert end_of_dump(done(errno.EPERM)) == errno.EPERM
    assert end_of_dump(b"\1\0\0\0" * 4) is None
