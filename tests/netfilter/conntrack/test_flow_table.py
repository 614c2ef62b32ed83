"""Flows and their ends in a real kernel: translated ones, and no others."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack import flow_ends, flow_table
from kubeproxy.netfilter.conntrack.flow_ends import FlowEnds
from kubeproxy.netfilter.conntrack.flow_records import FlowRecord, dump_request
from kubeproxy.netfilter.conntrack.flow_table import translated_flows
from kubeproxy.netfilter.netlink.messages import frame
from tests.support.lab import Host

pytestmark = pytest.mark.netns

V4, V6 = "10.96.0.10", "fd00:96::10"
TRANSLATION = """
table inet there {
    chain output {
        type nat hook output priority -100
        ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.3.0.1:8080
        ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.3.0.1:8080
        ip6 daddr fd00:96::10 tcp dport 80 dnat ip6 to [fd00:3::1]:8080
        ip6 daddr fd00:96::10 udp dport 53 dnat ip6 to [fd00:3::1]:8080
    }
}
"""


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with two service addresses that lead to its own sockets, and counted bytes."""
    with closing(Host("counted")) as made:
        made.ip(
            *(f"addr add {address} dev lo" for address in (f"{V4}/32", "10.3.0.1/32", f"{V6}/128", "fd00:3::1/128"))
        )
        made.run(["nft", "-f", "-"], input=TRANSLATION)
        for name in ("acct", "timestamp"):
            made.sysctl(f"net.netfilter.nf_conntrack_{name}", 1)
        yield made


@pytest.fixture
def connected(host: Host) -> Iterator[dict[str, socket.socket]]:
    """A translated flow of each family and protocol, and one of either protocol that is not."""
    with ExitStack() as stack:
        found = {}
        for family, service, target in (
            (socket.AF_INET, V4, "10.3.0.1"),
            (socket.AF_INET6, V6, "fd00:3::1"),
        ):
            udp = stack.enter_context(host.make_socket(family, socket.SOCK_DGRAM))
            udp.bind((target, 8080))
            tcp = stack.enter_context(host.make_socket(family))
            tcp.bind((target, 8080))
            tcp.listen()
            for name, address in ((f"{service}", (service, 80)), (f"direct {service}", (target, 8080))):
                sock = found[name] = stack.enter_context(host.make_socket(family))
                sock.connect(address)
                stack.enter_context(tcp.accept()[0])
                sock.sendall(b"word")
                datagram = found[f"UDP {name}"] = stack.enter_context(host.make_socket(family, socket.SOCK_DGRAM))
                datagram.connect((address[0], 53 if address[1] == 80 else 8080))
                datagram.send(b"word")
        yield found


def ports(flows: list[FlowRecord]) -> set[int]:
    return {int.from_bytes(flow.source_port, "big") for flow in flows}


def translated(connected: dict[str, socket.socket]) -> set[int]:
    return {sock.getsockname()[1] for name, sock in connected.items() if "direct" not in name}


@pytest.mark.parametrize("filtered", [True, False])
def test_translated_flows_of_both_families_and_protocols(
    host: Host, connected: dict[str, socket.socket], filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filtered:  # a kernel before 5.18
        request = dump_request(1)
        monkeypatch.setattr(
            flow_table,
            "dump_request",
            lambda sequence: frame(0x101, request[16:20], flags=0x300, sequence=sequence),
        )
    with host.entered():
        flows = list(translated_flows())
    assert ports(flows) == translated(connected)
    for flow in flows:
        is_tcp = flow.route[0] == b"\x06"
        assert (flow.tcp_state == 3) is is_tcp
        assert flow.bytes_in is not None
        assert flow.bytes_in > len("word")
        assert flow.started_ns is not None
        assert abs(flow.started_ns / 1e9 - time.time()) < 3600


def test_ends_of_translated_flows_alone_are_reported(host: Host, connected: dict[str, socket.socket]) -> None:
    with host.entered():
        ends = FlowEnds()
        before = {flow.key: flow for flow in translated_flows()}
    with closing(ends):
        assert list(ends.take(cpu_s=math.inf)) == []
        # Flows that began before the subscription may have no events; these began after it.
        more = {}
        with ExitStack() as stack:
            for name, address in (("ours", (V4, 53)), ("direct", ("10.3.0.1", 8080))):
                sock = more[name] = stack.enter_context(host.make_socket(socket.AF_INET, socket.SOCK_DGRAM))
                sock.connect(address)
                sock.send(b"12345")
            host.run(["conntrack", "-D", "-p", "udp"])
            (end,) = (flow for flow in ends.take(cpu_s=math.inf) if flow.key not in before)
            assert ports([end]) == {more["ours"].getsockname()[1]}
            assert (end.bytes_in, end.bytes_out) == (20 + 8 + 5, 0)
            assert end.started_ns is not None
            assert end.stopped_ns is not None
            assert end.started_ns <= end.stopped_ns
        assert ends.take_overflows() == 0


def test_a_full_buffer_is_counted_and_the_rest_is_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_ends, "BUFFER_BYTES", 8192)
    with host.entered():
        ends = FlowEnds()
    with closing(ends), host.make_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for port in range(2000, 2200):
            with host.make_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind((V4, port))
                sock.sendto(b"x", (V4, 53))
        host.run(["conntrack", "-D", "-p", "udp"])
        found = list(ends.take(cpu_s=math.inf))
        assert 0 < len(found) < 200
        assert ends.take_overflows() >= 1
        assert ends.take_overflows() == 0


def test_the_rest_waits_when_the_time_is_over(host: Host) -> None:
    with host.entered():
        ends = FlowEnds()
    with closing(ends):
        for port in range(2000, 2200):
            with host.make_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind((V4, port))
                sock.sendto(b"x", (V4, 53))
        host.run(["conntrack", "-D", "-p", "udp"])
        first = list(ends.take(cpu_s=0.0))
        assert 0 < len(first) < 200
        assert len(first) + len(list(ends.take(cpu_s=math.inf))) == 200


def test_a_refusal_is_an_error_with_advice(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_table, "dump_request", lambda sequence: frame(0xFE01, bytes(4), flags=0x300, sequence=1))
    with host.entered(), pytest.raises(KernelError, match=r"cannot read flows by ctnetlink: .*nf_conntrack_netlink"):
        list(translated_flows())
