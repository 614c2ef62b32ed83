"""Connections to pods, as a real kernel tracks them: open ones, those that have just ended, and datagrams."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kubeproxy.model import Address
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import delete_flows, flow_table
from kubeproxy.netfilter.conntrack.connections_to import Seen, connections_to
from kubeproxy.netfilter.conntrack.flow_records import naming, records
from tests.netfilter.conntrack.flow_messages import flow
from tests.support.lab import Host

pytestmark = pytest.mark.netns

PODS = [Address(it) for it in ("10.244.1.7", "10.244.1.8", "fd00:244::7", "fd00:244::8")]
TRACKED = """
table inet there {
    chain output {
        type nat hook output priority -100
        ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.7:8080
        ip6 daddr fd00:96::10 tcp dport 80 dnat ip6 to [fd00:244::7]:8080
    }
}
"""


@pytest.fixture
def host() -> Iterator[Host]:
    with closing(Host("pods")) as made:
        made.ip(*(f"addr add {address} dev lo" for address in PODS))
        made.ip("addr add 10.2.0.2/32 dev lo", "addr add 10.96.0.10/32 dev lo", "addr add fd00:2::2/128 dev lo")
        made.run(["nft", "-f", "-"], input=TRACKED)
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(host: Host, stack: ExitStack, address: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = stack.enter_context(host.make_socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind))
    sock.bind((address, 8080))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


def connected(host: Host, stack: ExitStack, source: str, destination: tuple[str, int]) -> socket.socket:
    sock = stack.enter_context(host.make_socket(socket.AF_INET6 if ":" in source else socket.AF_INET))
    sock.bind((source, 0))
    sock.connect(destination)
    return sock


@pytest.mark.parametrize("filtered", [delete_flows.FILTERED, 0])
def test_connections_to_pods(host: Host, stack: ExitStack, filtered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_table, "FILTERED", filtered)
    listeners = {pod: listening(host, stack, pod) for pod in PODS}
    connected(host, stack, "10.2.0.2", ("10.96.0.10", 80))  # by a Service
    connected(host, stack, "10.2.0.2", (PODS[0], 8080))  # directly
    connected(host, stack, PODS[1], (PODS[0], 8080))  # of another pod
    connected(host, stack, PODS[1], (PODS[1], 8080))  # of the pod itself
    connected(host, stack, "fd00:2::2", (PODS[2], 8080))
    with host.entered():
        found = connections_to(PODS)
    assert found == {
        PODS[0]: Seen(3, recent=False),
        PODS[1]: Seen(0, recent=False),
        PODS[2]: Seen(1, recent=False),
        PODS[3]: Seen(0, recent=False),
    }
    assert len(listeners) == 4


@pytest.mark.parametrize("own", [False, True])
def test_a_connection_that_has_just_ended_is_recent_unless_it_is_the_nodes(
    host: Host, stack: ExitStack, own: bool
) -> None:
    listener = listening(host, stack, PODS[0])
    client = connected(host, stack, "10.2.0.2", (PODS[0], 8080))
    accepted, _ = listener.accept()
    accepted.close()
    client.close()
    if not own:
        host.ip("addr del 10.2.0.2/32 dev lo")
    with host.entered():
        assert connections_to(PODS[:1]) == {PODS[0]: Seen(0, recent=not own)}


def test_a_connection_that_ended_long_ago_is_not(host: Host, stack: ExitStack) -> None:
    listener = listening(host, stack, PODS[0])
    client = connected(host, stack, "10.2.0.2", (PODS[0], 8080))
    accepted, _ = listener.accept()
    accepted.close()
    client.close()
    host.ip("addr del 10.2.0.2/32 dev lo")
    host.sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", 500)  # as if it had counted down
    with host.entered():
        assert connections_to(PODS[:1]) == {PODS[0]: Seen(0, recent=False)}


def test_a_datagram_is_recent(host: Host, stack: ExitStack) -> None:
    server = listening(host, stack, PODS[0], socket.SOCK_DGRAM)
    client = stack.enter_context(host.make_socket(socket.AF_INET, socket.SOCK_DGRAM))
    client.bind(("10.2.0.2", 0))
    client.sendto(b"question", (PODS[0], 8080))
    _, address = server.recvfrom(100)
    server.sendto(b"answer", address)
    host.ip("addr del 10.2.0.2/32 dev lo")
    with host.entered():
        assert connections_to(PODS[:2]) == {PODS[0]: Seen(0, recent=True), PODS[1]: Seen(0, recent=False)}


def test_a_syn_without_an_answer_is_nothing(host: Host, stack: ExitStack) -> None:
    host.ip("route add 10.244.9.9/32 dev lo")
    sock = stack.enter_context(host.make_socket(socket.AF_INET))
    sock.setblocking(False)
    sock.connect_ex(("10.244.9.9", 8080))
    with host.entered():
        assert connections_to([Address("10.244.9.9")]) == {Address("10.244.9.9"): Seen(0, recent=False)}


def test_a_kernel_that_refuses(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_table, "NETLINK_NETFILTER", 99)
    with pytest.raises(KernelError, match="cannot read flows"):
        connections_to(PODS)


def test_messages_that_name_no_address_are_not_looked_at() -> None:
    messages = [flow(target=(f"10.244.1.{number}", 8080), number=number) for number in range(9)]
    wanted = naming([bytes([10, 244, 1, 4]), bytes([10, 244, 1, 7]), bytes(16)])
    data = b"".join(messages)
    found = [int.from_bytes(each.identity, "big") for each in records(data, 0x100, among=wanted)]
    assert found == [4, 7]
    assert not list(records(data, 0x100, among=naming([bytes([10, 244, 1, 99])])))
