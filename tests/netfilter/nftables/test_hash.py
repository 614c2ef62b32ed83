"""A client's place in a table: what a worker computes is what this kernel computes, packet by packet."""

from __future__ import annotations

import ipaddress
import json
import random
import socket
import struct

import pytest

from kubeproxy.model import seed_of
from kubeproxy.model.maglev import SIZES, place_of
from tests.support.lab import Host

pytestmark = pytest.mark.netns

CLIENTS = 10_000
SEED = seed_of("default", "web")


def datagram(family: socket.AddressFamily, source: bytes, port: int) -> bytes:
    """A UDP datagram with its IP header, to port 9 of loopback."""
    udp = struct.pack("!4H", port, 9, 8, 0)
    if family is socket.AF_INET:
        return struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, 0) + source + bytes([127, 0, 0, 1]) + udp
    return struct.pack("!IHBB", 6 << 28, 8, 17, 64) + source + bytes(15) + b"\x01" + udp


@pytest.mark.parametrize(
    ("family", "header", "kind"), [(socket.AF_INET, "ip", "ipv4_addr"), (socket.AF_INET6, "ip6", "ipv6_addr")]
)
@pytest.mark.parametrize("size", [size for _, size in SIZES])
def test_ten_thousand_clients_have_the_places_that_the_kernel_gives_them(
    family: socket.AddressFamily, header: str, kind: str, size: int
) -> None:
    rng = random.Random(size)
    # The first byte keeps clear of addresses that no packet may come from.
    width = 4 if family is socket.AF_INET else 16
    first = b"\x0a" if family is socket.AF_INET else b"\xfd"
    clients = {(first + rng.randbytes(width - 1), rng.randrange(1, 65536)) for _ in range(CLIENTS)}
    with Host("hash") as host:
        host.run(["nft", "-f", "-"], input=rules(header, kind, size))
        with host.entered(), socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
            for source, port in clients:
                sender.sendto(datagram(family, source, port), ("127.0.0.1" if width == 4 else "::1", 0))
        by_address, by_port = (elements(host, name) for name in ("by_address", "by_port"))
    assert len(by_port) == len(clients)
    for source, port in clients:
        address = str(ipaddress.ip_address(source))
        assert (address, port, place_of(source, None, seed=SEED, size=size)) in by_address
        assert (address, port, place_of(source, port, seed=SEED, size=size)) in by_port


def rules(header: str, kind: str, size: int) -> str:
    """Two sets that remember which place each client has got."""
    client = f"{header} saddr . udp sport"
    return f"""
        add table inet h
        add set inet h by_address {{ type {kind} . inet_service . mark; size 65535; flags dynamic; }}
        add set inet h by_port {{ type {kind} . inet_service . mark; size 65535; flags dynamic; }}
        add chain inet h c {{ type filter hook output priority 0; }}
        add rule inet h c udp dport 9 meta mark set jhash {header} saddr mod {size} seed {SEED}
        add rule inet h c udp dport 9 add @by_address {{ {client} . meta mark }}
        add rule inet h c udp dport 9 meta mark set jhash {client} mod {size} seed {SEED}
        add rule inet h c udp dport 9 add @by_port {{ {client} . meta mark }}
    """


def elements(host: Host, name: str) -> set[tuple[str, int, int]]:
    """The clients of a set with their places."""
    listed = json.loads(host.run(["nft", "-j", "list", "set", "inet", "h", name]).stdout)
    (found,) = [each["set"]["elem"] for each in listed["nftables"] if "set" in each]
    return {(address, port, place) for address, port, place in (each["concat"] for each in found)}
