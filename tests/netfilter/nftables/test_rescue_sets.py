"""`kubeproxy.netfilter.nftables.rescue_sets`: the parts of a listing, and when the kernel has made each."""

from __future__ import annotations

import socket
import struct
import time
from typing import cast

import pytest

from kubeproxy.netfilter.netlink.messages import encode
from kubeproxy.netfilter.nftables.rescue_sets import _alike, _elements, _TimedSocket


class SlowSocket:
    """Each call takes some seconds of a clock that stands still otherwise."""

    def __init__(self, *takes_s: float) -> None:
        self.now = 100.0
        self._takes_s = iter(takes_s)

    def send(self, data: bytes) -> int:
        self.now += next(self._takes_s)
        return len(data)

    def recv(self, at_most: int) -> bytes:
        self.now += next(self._takes_s)
        return b"part"


def test_each_part_is_dated_by_the_call_in_which_the_kernel_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowSocket(0.001, 0.002, 0.5, 0.003)
    monkeypatch.setattr(time, "monotonic", lambda: slow.now)
    timed = _TimedSocket(cast(socket.socket, slow))
    timed.send(b"request")
    dated = []
    for _ in range(3):
        timed.recv(1)
        dated.append((timed.counted_at, timed.blur_s))
        slow.now += 10.0  # what this process does between two reads makes no part older
    assert [at for at, _ in dated] == pytest.approx([100.0, 100.001, 110.003])
    assert [blur_s for _, blur_s in dated] == pytest.approx([0.001, 0.002, 0.5])


def element(key: bytes, expires_ms: int, timeout_ms: int | None = None) -> bytes:
    """An element as the kernel lists it."""
    timeout = [(4, struct.pack(">Q", timeout_ms))] if timeout_ms is not None else []
    parts = [(1, encode([(1, key)])), *timeout, (5, struct.pack(">Q", expires_ms))]
    return encode([(1, encode(parts))])


@pytest.mark.parametrize("key_bytes", [8, 20], ids=["IPv4", "IPv6"])
def test_elements_that_are_alike_are_read_as_others_are(key_bytes: int) -> None:
    keys = [bytes([number]) * key_bytes for number in range(1, 40)]
    alike = b"".join(element(key, 100 * number) for number, key in enumerate(keys))
    expected = [(key, number / 10) for number, key in enumerate(keys)]
    assert _alike(alike) == expected
    mixed = alike + element(b"x" * key_bytes, 7000, 9000)
    assert _alike(mixed) is None
    for elements, more in ((alike, []), (mixed, [(b"x" * key_bytes, 7.0)])):
        answer = bytes(4) + encode([(2, b"asked\0"), (3, elements)])
        assert list(_elements(answer)) == [*expected, *more]


@pytest.mark.parametrize("damage", [2, 6, 10, 20, 22], ids=lambda at: f"byte {at}")
def test_what_only_looks_alike_is_not_taken_for_it(damage: int) -> None:
    damaged = bytearray(element(bytes(8), 100) * 3)
    damaged[32 + damage] ^= 4
    assert _alike(bytes(damaged)) is None
    assert _alike(b"") is None
