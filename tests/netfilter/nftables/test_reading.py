"""Reading of the table, with a stand-in for the kernel's answers."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import pytest

from kubeproxy.model import Protocol, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.netlink.messages import HEADER, NLMSG_DONE, encode
from kubeproxy.netfilter.nftables import reading
from kubeproxy.netfilter.nftables.declarations import place
from kubeproxy.netfilter.nftables.element_socket import TABLE_NAME
from kubeproxy.netfilter.nftables.execute import NftCommands
from kubeproxy.netfilter.nftables.reading import TableReader
from kubeproxy.netfilter.nftables.spread_counters import new_connections
from tests.netfilter.stage import destination

CHANGED = 0x10
SET, CHAIN, ELEMENT = 10, 4, 13
Answer = Callable[[int, int], tuple[list[bytes], int]]
"""What the kernel has for a kind of object at the how manieth question for it, and the flags of the end."""


class Kernel:
    """A netlink socket."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[int] = []
        self.closed = False
        self._waiting: list[bytes] = []

    def settimeout(self, _: float) -> None:
        """Do nothing."""

    def send(self, data: bytes) -> None:
        assert not self._waiting, "the last dump is read to its end"
        _, kind, _, sequence, _ = HEADER.unpack_from(data)
        self.asked.append(kind & 0xFF)
        bodies, flags = self._answer(kind & 0xFF, self.asked.count(kind & 0xFF))
        for body in bodies:
            self._waiting.append(HEADER.pack(HEADER.size + 4 + len(body), kind, 2, sequence, 0) + bytes(4) + body)
        self._waiting.append(HEADER.pack(HEADER.size + 4, NLMSG_DONE, 2 | flags, sequence, 0) + bytes(4))

    def recv(self, _: int) -> bytes:
        return self._waiting.pop(0)

    def close(self) -> None:
        self.closed = True


def kernel(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> Kernel:
    made = Kernel(answer)
    monkeypatch.setattr(reading, "open_netlink", lambda _: made)
    return made


def chain(name: str) -> bytes:
    return encode([(1, TABLE_NAME), (3, name.encode() + b"\0")])


def declared(name: str, key: int) -> bytes:
    return encode([(1, TABLE_NAME), (2, name.encode() + b"\0"), (4, struct.pack("!I", key))])


@pytest.mark.parametrize(("interrupted", "chains", "asked"), [(1, {"a", "b"}, 2), (9, {"a"}, 3)])
def test_what_changed_while_it_was_listed_is_listed_again(
    monkeypatch: pytest.MonkeyPatch, interrupted: int, chains: set[str], asked: int
) -> None:
    def answer(kind: int, count: int) -> tuple[list[bytes], int]:
        if kind != CHAIN:
            return [], 0
        return ([chain("a")], CHANGED) if count <= interrupted else ([chain("a"), chain("b")], 0)

    there = kernel(monkeypatch, answer)
    assert TableReader().read().chains.keys() == chains
    assert there.asked.count(CHAIN) == asked


def test_elements_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    there = kernel(
        monkeypatch,
        lambda kind, _: ([declared("a", 13)], 0) if kind == SET else ([], CHANGED if kind == ELEMENT else 0),
    )
    assert list(TableReader().map("a").entries) == []
    assert there.asked.count(ELEMENT) == 1


async def test_the_end_of_the_process_waits_for_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    there = kernel(monkeypatch, lambda *_: ([], 0))
    assert await NftCommands().read(lambda _: threading.current_thread().daemon)
    assert there.closed


async def test_counters_of_another_form_are_a_fault_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Traffic(destination("10.96.0.1", Protocol.TCP))
    name = place(web.destination, "spreads", web.origin)
    kernel(monkeypatch, lambda *_: ([declared(name, 63)], 0))
    with pytest.raises(KernelError, match="sets of another form"):
        await new_connections([web])
