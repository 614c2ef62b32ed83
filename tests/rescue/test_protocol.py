"""`kubeproxy.rescue.protocol` and `kubeproxy.rescue.nflog`: bytes and messages."""

from __future__ import annotations

import pytest

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.rescue import RescueCounts
from kubeproxy.rescue.protocol import (
    FLOWS_PER_MESSAGE,
    MESSAGE_BYTES,
    Beat,
    Failed,
    Freed,
    FreedFlow,
    GarbledMessageError,
    Reason,
    Started,
    decode_message,
    decode_order,
    encode,
)

POD = Target(Address("fd00:3:1::2"), 8080)


@pytest.mark.parametrize(
    "message",
    [Started(7), Started(7, "why"), Beat(RescueCounts(copied=3)), Failed(Protocol.UDP, POD, Reason.UNREACHABLE)],
)
def test_reports_and_back(message: Started | Beat | Failed) -> None:
    assert decode_message(encode(message)) == message


def test_the_longest_order_fits() -> None:
    address = Address("fd00:1234:5678:9abc:def0:1234:5678:9abc")
    order = Freed(
        Protocol.TCP, POD, (FreedFlow(address, 65535, address, 65535, address, 65535, 1 << 31),) * FLOWS_PER_MESSAGE
    )
    data = encode(order)
    assert len(data) <= MESSAGE_BYTES
    assert decode_order(data) == order


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x93\xa6Failed", encode(Started(1))])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(GarbledMessageError):
        decode_order(data)


def test_the_counts_of_processes_add_up_and_copies_are_those_of_the_last() -> None:
    sums = RescueCounts(copied=3, refused=1, held=7).plus(RescueCounts(copied=2, resent=4, held=1))
    assert sums == RescueCounts(copied=5, refused=1, resent=4, held=1)
