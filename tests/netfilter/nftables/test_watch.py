"""Foreign changes of our table are noticed at once, and not taken for our own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.netfilter.nftables.watch import TableWatch
from tests.support.lab import Host

pytestmark = pytest.mark.netns

OURS = "add table inet kubeproxy\nadd set inet kubeproxy s { type inet_service; }\n"
OTHERS = [
    "add table inet kubeproxy2",
    "add table inet a-kubeproxy",
    "add table inet t; add chain inet t kubeproxy; add rule inet t kubeproxy counter comment kubeproxy",
]


@pytest.fixture
def watch() -> Iterator[tuple[Host, TableWatch]]:
    """A host, and a watch on it."""
    with Host("node") as host:
        with host.entered():
            watch = TableWatch()
        yield host, watch
        watch.close()


def nft(host: Host, commands: str) -> None:
    host.run(["nft", "-f", "-"], input=commands)


def test_only_changes_of_our_table_count(watch: tuple[Host, TableWatch]) -> None:
    host, it = watch
    assert not it.look()
    for commands in OTHERS:
        nft(host, commands)
        assert not it.look(), commands
    for commands in (
        OURS,
        "add element inet kubeproxy s { 80 }",
        "add table inet z; delete element inet kubeproxy s { 80 }",
        "add chain inet kubeproxy c",
        "add rule inet kubeproxy c accept",
        "flush ruleset",
    ):
        nft(host, commands)
        assert it.look(), commands
        assert not it.look()


def test_our_own_changes_are_not_foreign(watch: tuple[Host, TableWatch]) -> None:
    host, it = watch
    it.begin()
    nft(host, OURS)
    assert not it.look()
    it.end(committed=True)
    assert not it.look()
    it.begin()
    nft(host, "add element inet kubeproxy s { 81 }")
    nft(host, "add element inet kubeproxy s { 82 }")
    it.end(committed=True)
    assert it.look(), "one of the two was not ours"
    it.begin()
    nft(host, "add element inet kubeproxy s { 83 }")
    it.end(committed=False)
    assert it.look(), "ours failed, or its result is unknown"
    it.begin()
    it.end(committed=True)
    assert not it.look(), "it changed nothing"
    nft(host, "add element inet kubeproxy s { 84 }")
    assert it.look()


def test_lost_notifications_count_as_foreign_changes(watch: tuple[Host, TableWatch]) -> None:
    host, it = watch
    nft(host, OURS)
    assert it.look()
    with socket.socket(fileno=os.dup(it.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    ports = ", ".join(map(str, range(1, 3000)))
    nft(host, f"add element inet kubeproxy s {{ {ports} }}")
    assert it.look()
