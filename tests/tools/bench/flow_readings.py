"""How long it takes to read flows of pods out of a large conntrack table.

``python -m tests.tools.bench.flow_readings``, as root: 200,000 TCP connections of 110 pods, and then as many UDP flows
of a Service, one of whose endpoints leaves; the best of three.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from kubeproxy.model import Address, Destination, Protocol, Target, Traffic
from kubeproxy.netfilter.conntrack.delete_flows import KernelConntrack
from kubeproxy.netfilter.conntrack.flow_records import NEW, NFGEN, PROTOINFO, STATUS, TIMEOUT, TUPLE_ORIG, TUPLE_REPLY
from kubeproxy.netfilter.conntrack.flow_table import flows_to
from kubeproxy.netfilter.netlink.messages import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_CREATE,
    encode,
    frame,
    open_netlink,
)
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from tests.support.lab import Host

FLOWS = 200_000
PODS = 110
ROUNDS = 3
VIP = Address("10.96.0.10")
_NESTED = 0x8000
_TCP, _UDP, _ESTABLISHED, _CONFIRMED = 6, 17, 3, 0b1110
_NAT_DST = 13  # CTA_NAT_DST


def pod(number: int) -> Address:
    """The address of a pod."""
    return Address(f"10.244.1.{number + 2}")


def fill(count: int, creation: Callable[[int], bytes]) -> None:
    """Enter so many flows into the table of this network namespace."""
    with open_netlink(NETLINK_NETFILTER) as netlink:
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for number in range(count):
            last = number % 200 == 199
            flags = NLM_F_CREATE | (NLM_F_ACK if last else 0)
            body = NFGEN.pack(socket.AF_INET, 0, 0) + creation(number)
            netlink.send(frame(NEW, body, flags=flags, sequence=number))
            if last:
                answer = netlink.recv(1 << 16)
                (error,) = struct.unpack_from("=i", answer, 16)
                if error:
                    raise OSError(-error, os.strerror(-error))


def tcp(number: int) -> bytes:
    """A TCP connection to a pod, as attributes."""
    client, target, port = _ends(number)
    state = (PROTOINFO | _NESTED, encode([(1 | _NESTED, encode([(1, bytes([_ESTABLISHED]))]))]))
    return _flow(_TCP, (client, port), (target, 8080)) + encode([state])


def udp(number: int) -> bytes:
    """A UDP flow to the Service, which is led to a pod, as attributes."""
    client, target, port = _ends(number)
    ports = encode([(1, struct.pack(">H", 53)), (2, struct.pack(">H", 53))])
    led_to = encode([(1, target), (2, target), (3 | _NESTED, ports)])
    return _flow(_UDP, (client, port), (ipaddress.ip_address(VIP).packed, 53)) + encode([(_NAT_DST | _NESTED, led_to)])


def _ends(number: int) -> tuple[bytes, bytes, int]:
    """The client, the pod, and the client's port."""
    client = ipaddress.ip_address(0x0A000001 + number // 20_000).packed
    return client, ipaddress.ip_address(pod(number % PODS)).packed, 10_000 + number % 20_000


def _flow(protocol: int, client: tuple[bytes, int], to: tuple[bytes, int]) -> bytes:
    (source, source_port), (destination, port) = client, to
    return encode(
        [
            (TUPLE_ORIG | _NESTED, _tuple(protocol, source, destination, source_port, port)),
            (TUPLE_REPLY | _NESTED, _tuple(protocol, destination, source, port, source_port)),
            (TIMEOUT, struct.pack(">I", 86_400)),
            (STATUS, struct.pack(">I", _CONFIRMED)),
        ]
    )


def _tuple(protocol: int, source: bytes, destination: bytes, source_port: int, destination_port: int) -> bytes:
    ports = [(1, bytes([protocol])), (2, struct.pack(">H", source_port)), (3, struct.pack(">H", destination_port))]
    return encode([(1 | _NESTED, encode([(1, source), (2, destination)])), (2 | _NESTED, encode(ports))])


def measured(pods: int) -> tuple[float, float, int]:
    """Wall time and processor time of a reading for so many pods, and the connections that it has found."""
    samples = []
    for _ in range(ROUNDS):
        wall, cpu = time.monotonic(), time.thread_time()
        found = sum(1 for _ in flows_to([pod(number) for number in range(pods)]))
        samples.append((time.monotonic() - wall, time.thread_time() - cpu, found))
    return min(samples, key=lambda each: each[1])


def rules(pods: range) -> RuleSet:
    """The rules of the Service with these pods as endpoints."""
    traffic = Traffic(Destination(VIP, Protocol.UDP, 53))
    targets = tuple(Target(pod(number), 53) for number in pods)
    return RuleSet(redirects={traffic: 34001}, spreads={traffic: Spread("kube-system/dns:dns", targets, targets)})


def leaving() -> tuple[float, float]:
    """Wall time and processor time until the flows to an endpoint that leaves are looked for. It has no flow, because a
    deletion would shrink the table."""
    before, now = rules(range(PODS + 1)), rules(range(PODS))
    samples = []
    for _ in range(ROUNDS):
        # The process has one thread more, so both are measured.
        wall, cpu = time.monotonic(), time.process_time()
        assert asyncio.run(KernelConntrack().reconcile(before, now)) == 0
        samples.append((time.process_time() - cpu, time.monotonic() - wall))
    cpu, wall = min(samples)
    return wall, cpu


def of_tcp() -> Iterator[str]:
    """The figures of TCP connections, one line each."""
    fill(FLOWS, tcp)
    yield f"{FLOWS:,} connections of {PODS} pods; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    for pods in (1, 4, 8, 9, 30, PODS):
        wall_s, cpu_s, found = measured(pods)
        yield f"{pods:4} pods: {wall_s:6.3f} s, {cpu_s:6.3f} CPU s, {found:7,} connections"


def of_udp() -> Iterator[str]:
    """The figure of UDP flows, as a line."""
    fill(FLOWS, udp)
    wall_s, cpu_s = leaving()
    yield f"an endpoint leaves a Service of {FLOWS:,} UDP flows: {wall_s:6.3f} s, {cpu_s:6.3f} CPU s"


def main() -> None:
    """Fill the tables of two network namespaces, and print the figures."""
    maximum = Path("/proc/sys/net/netfilter/nf_conntrack_max")
    if int(maximum.read_text()) < FLOWS * 1.2:
        raise SystemExit(f"{maximum}: {maximum.read_text().strip()} is too small for {FLOWS:,} flows")
    for lines in (of_tcp, of_udp):
        with closing(Host("flows")) as host, host.entered():
            host.run(
                [
                    "nft",
                    "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
                    "add rule inet t c ct state new; add chain inet t n { type nat hook input priority 0; }",
                ]
            )
            for line in lines():
                print(line)


if __name__ == "__main__":
    main()
