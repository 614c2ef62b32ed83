"""`kubeproxy.netfilter.nftables.set_elements`: when the kernel has made each part of a listing."""

from __future__ import annotations

import socket
import time
from typing import cast

import pytest

from kubeproxy.netfilter.nftables.set_elements import _TimedSocket


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
