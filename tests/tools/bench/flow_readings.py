"""How long it takes to read the connections of pods out of a large conntrack table.

``python -m tests.tools.bench.flow_readings``, as root: 200,000 TCP connections of 110 pods, the best of three.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kubeproxy.model import Address
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
from tests.support.lab import Host

FLOWS = 200_000
PODS = 110
ROUNDS = 3
_NESTED = 0x8000
_TCP, _ESTABLISHED, _CONFIRMED = 6, 3, 0b1110


def pod(number: int) -> Address:
    """The address of a pod."""
    return Address(f"10.244.1.{number + 2}")


def fill(count: int) -> None:
    """Enter so many connections into the table of this network namespace."""
    with open_netlink(NETLINK_NETFILTER) as netlink:
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for number in range(count):
            last = number % 200 == 199
            netlink.send(_creation(number, flags=NLM_F_CREATE | (NLM_F_ACK if last else 0)))
            if last:
                answer = netlink.recv(1 << 16)
                (error,) = struct.unpack_from("=i", answer, 16)
                if error:
                    raise OSError(-error, os.strerror(-error))


def _creation(number: int, *, flags: int) -> bytes:
    client = ipaddress.ip_address(0x0A000001 + number // 20_000).packed
    target, port = ipaddress.ip_address(pod(number % PODS)).packed, 10_000 + number % 20_000
    values = [
        (TUPLE_ORIG | _NESTED, _tuple(client, target, port, 8080)),
        (TUPLE_REPLY | _NESTED, _tuple(target, client, 8080, port)),
        (TIMEOUT, struct.pack(">I", 86_400)),
        (STATUS, struct.pack(">I", _CONFIRMED)),
        (PROTOINFO | _NESTED, encode([(1 | _NESTED, encode([(1, bytes([_ESTABLISHED]))]))])),
    ]
    return frame(NEW, NFGEN.pack(socket.AF_INET, 0, 0) + encode(values), flags=flags, sequence=number)


def _tuple(source: bytes, destination: bytes, source_port: int, destination_port: int) -> bytes:
    ports = [(1, bytes([_TCP])), (2, struct.pack(">H", source_port)), (3, struct.pack(">H", destination_port))]
    return encode([(1 | _NESTED, encode([(1, source), (2, destination)])), (2 | _NESTED, encode(ports))])


def measured(pods: int) -> tuple[float, float, int]:
    """Wall time and processor time of a reading for so many pods, and the connections that it has found."""
    samples = []
    for _ in range(ROUNDS):
        wall, cpu = time.monotonic(), time.thread_time()
        found = sum(1 for _ in flows_to([pod(number) for number in range(pods)]))
        samples.append((time.monotonic() - wall, time.thread_time() - cpu, found))
    return min(samples, key=lambda each: each[1])


def lines() -> Iterator[str]:
    """The figures, one line each."""
    yield f"{FLOWS:,} connections of {PODS} pods; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    for pods in (1, 4, 8, 9, 30, PODS):
        wall_s, cpu_s, found = measured(pods)
        yield f"{pods:4} pods: {wall_s:6.3f} s, {cpu_s:6.3f} CPU s, {found:7,} connections"


def main() -> None:
    """Fill the table of a network namespace, and print the figures."""
    maximum = Path("/proc/sys/net/netfilter/nf_conntrack_max")
    if int(maximum.read_text()) < FLOWS * 1.2:
        raise SystemExit(f"{maximum}: {maximum.read_text().strip()} is too small for {FLOWS:,} connections")
    with closing(Host("flows")) as host, host.entered():
        host.run(
            [
                "nft",
                "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
                "add rule inet t c ct state new",
            ]
        )
        fill(FLOWS)
        for line in lines():
            print(line)


if __name__ == "__main__":
    main()
