"""Flows to a failed endpoint in a real kernel: those that it has not answered are deleted, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kubeproxy.model import Address, Destination, Family, Protocol, Target
from kubeproxy.netfilter.conntrack import messages
from kubeproxy.netfilter.conntrack.delete_endpoint_flows import Deleted, delete_flows_to
from kubeproxy.netfilter.conntrack.delete_flows import Ctnetlink
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow
from tests.support.lab import Host, Network, make_network

pytestmark = pytest.mark.netns

PORT = 8080
VIP = {Family.IPV4: "10.96.7.7", Family.IPV6: "fd96::7"}
OTHER_VIP = {Family.IPV4: "10.96.7.8", Family.IPV6: "fd96::8"}
POD = {Family.IPV4: "10.3.0.2", Family.IPV6: "fd00:3::2"}
RULES = """
table inet t {
  chain c {
    type nat hook prerouting priority -100
    ip daddr { 10.96.7.7, 10.96.7.8, 10.96.7.10 } tcp dport 80 dnat ip to 10.3.0.2:8080
    ip6 daddr { fd96::7, fd96::8, fd96::10 } tcp dport 80 dnat ip6 to [fd00:3::2]:8080
    ip daddr 10.96.7.9 tcp dport 80 dnat ip to 10.3.1.2:8080
    ip6 daddr fd96::9 tcp dport 80 dnat ip6 to [fd00:3:1::2]:8080
  }
}
"""
FOREIGN = {Family.IPV4: "10.96.7.10", Family.IPV6: "fd96::10"}
"""A destination of the pod that another program translates."""
ELSEWHERE = {Family.IPV4: "10.96.7.9", Family.IPV6: "fd96::9"}
"""A destination of another pod."""


@pytest.fixture
def network() -> Iterator[Network]:
    with make_network(pods=2) as network:
        network.node.run(["nft", "-f", "-"], input=RULES)
        yield network


@contextlib.contextmanager
def mute(pod: Host) -> Iterator[None]:
    """A pod that keeps its answers to SYNs to itself."""
    pod.run(
        [
            "nft",
            "add table inet d; add chain inet d c { type filter hook output priority 0; }; "
            "add rule inet d c tcp flags & (syn | ack) == syn | ack drop",
        ]
    )
    try:
        yield
    finally:
        pod.run(["nft", "delete table inet d"])


def begin(network: Network, address: str) -> socket.socket:
    """A connection that has sent its SYN."""
    sock = network.client.make_socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.setblocking(False)
    sock.connect_ex((address, 80))
    sock.settimeout(10)
    return sock


def tracked(network: Network, sock: socket.socket) -> str:
    """The kernel's line about a connection; empty: none."""
    wanted = f"sport={sock.getsockname()[1]} dport=80"
    listed = "".join(network.node.run(["conntrack", "-L", "-f", family]).stdout for family in ("ipv4", "ipv6"))
    return next((line for line in listed.splitlines() if wanted in line), "")


def wait_for(condition: Callable[[], Any], what: str) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def is_ours(destination: Destination) -> bool:
    """Whether the tests take a destination for one of our rules."""
    return destination.port == 80 and destination.address not in FOREIGN.values()


def delete(network: Network, family: Family) -> list[Deleted]:
    """Delete the flows to the first pod."""
    target = Target(Address(POD[family]), PORT)
    with network.node.entered():
        return asyncio.run(delete_flows_to([target], Protocol.TCP, is_ours=is_ours)).get(target, [])


@pytest.mark.parametrize("filters", [True, False], ids=["this kernel", "a kernel without filters of deletions"])
@pytest.mark.parametrize("family", list(Family), ids=str)
def test_unanswered_flows_to_the_endpoint_are_deleted(
    network: Network, family: Family, filters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filters:
        monkeypatch.setattr(messages, "_FILTER", 99)  # an attribute that no kernel knows
    with contextlib.ExitStack() as stack:
        for pod in network.pods:
            stack.enter_context(pod.listen(("::", PORT)))
        running = stack.enter_context(begin(network, VIP[family]))
        wait_for(lambda: "ASSURED" in tracked(network, running), "the handshake is complete")
        for pod in network.pods:
            stack.enter_context(mute(pod))
        waiting = [stack.enter_context(begin(network, vips[family])) for vips in (VIP, OTHER_VIP)]
        others = [stack.enter_context(begin(network, vips[family])) for vips in (ELSEWHERE, FOREIGN)]
        wait_for(lambda: all("UNREPLIED" in tracked(network, each) for each in (*waiting, *others)), "SYNs are sent")
        deleted = delete(network, family)
        assert {(it.flow.address, it.peer_port) for it in deleted} == {
            (vips[family], each.getsockname()[1]) for each, vips in zip(waiting, (VIP, OTHER_VIP), strict=True)
        }
        assert "UNREPLIED" in tracked(network, others[0]), "another pod's flow stays"
        assert "UNREPLIED" in tracked(network, others[1]), "another program's flow stays"
        assert "ASSURED" in tracked(network, running)


@pytest.mark.parametrize("filters", [True, False], ids=["this kernel", "a kernel without filters of deletions"])
def test_flows_to_many_endpoints_are_read_once(
    network: Network, filters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can have a thousand endpoints of its own fall silent: to read all flows for each would take minutes."""
    if not filters:
        monkeypatch.setattr(messages, "_FILTER", 99)
    read: list[Family] = []
    dump = Ctnetlink.dump

    def counted(self: Ctnetlink, family: Family, *args: Any, **more: Any) -> Iterator[TrackedFlow]:
        read.append(family)
        return dump(self, family, *args, **more)

    monkeypatch.setattr(Ctnetlink, "dump", counted)
    strangers = [Target(Address(f"10.9.0.{number}"), PORT) for number in range(50)]
    pods = [Target(Address(address), PORT) for address in (*POD.values(), "10.3.1.2", "fd00:3:1::2")]
    with contextlib.ExitStack() as stack:
        for pod in network.pods:
            stack.enter_context(pod.listen(("::", PORT)))
            stack.enter_context(mute(pod))
        waiting = [
            stack.enter_context(begin(network, vips[family]))
            for family in Family
            for vips in (VIP, OTHER_VIP, ELSEWHERE)
        ]
        wait_for(lambda: all("UNREPLIED" in tracked(network, each) for each in waiting), "SYNs are sent")
        with network.node.entered():
            deleted = asyncio.run(delete_flows_to([*strangers, *pods], Protocol.TCP, is_ours=is_ours))
        assert {str(target): len(flows) for target, flows in deleted.items()} == {
            str(target): 1 if number > 1 else 2 for number, target in enumerate(pods)
        }
    assert sorted(read) == sorted(Family)


@pytest.mark.parametrize("family", list(Family), ids=str)
def test_a_flow_that_is_answered_after_it_was_read_stays(
    network: Network, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy host, where the thread stands still between reading flows and deleting them."""
    dump = Ctnetlink.dump
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(network.pods[0].listen(("::", PORT)))
        muted = stack.enter_context(contextlib.ExitStack())
        muted.enter_context(mute(network.pods[0]))
        sock = stack.enter_context(begin(network, VIP[family]))
        wait_for(lambda: "UNREPLIED" in tracked(network, sock), "the SYN is sent")

        def late(self: Ctnetlink, *args: Any, **more: Any) -> Iterator[TrackedFlow]:
            found = list(dump(self, *args, **more))
            muted.close()
            wait_for(lambda: "ASSURED" in tracked(network, sock), "the SYN is answered")
            return iter(found)

        monkeypatch.setattr(Ctnetlink, "dump", late)
        delete(network, family)
        server, _ = listener.accept()
        with server:
            server.sendall(b"hello")
            assert sock.recv(5) == b"hello"
