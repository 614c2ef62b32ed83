"""A client's endpoint under a hash: what a worker computes is what this kernel computes, packet by packet."""

from __future__ import annotations

import ipaddress
import json
import random
import socket
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.model import Address, Balancing, Protocol, Scheduler, Target, Traffic, seed_of
from kubeproxy.model.maglev import SIZES, place_of, table_of
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import ClientHash, RuleChange, Spread
from tests.netfilter.stage import destination, rule_set
from tests.support.lab import Host

pytestmark = pytest.mark.netns

CLIENTS = 10_000
SEED = seed_of("default", "web")


def send(clients: Iterable[tuple[bytes, int]], to: str, to_port: int = 9) -> None:
    """Send a UDP datagram of each client, with its IP header, from this thread's host."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    packed = socket.inet_pton(family, to)
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
        for source, port in clients:
            udp = struct.pack("!4H", port, to_port, 8, 0)
            if family is socket.AF_INET:
                header = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, 0)
            else:
                # Unlike IPv4's, the checksum of UDP may not be left out.
                udp = udp[:6] + checksum(source + packed + struct.pack("!II", 8, 17) + udp)
                header = struct.pack("!IHBB", 6 << 28, 8, 17, 64)
            sender.sendto(header + source + packed + udp, (to, 0))


def checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF or 0xFFFF)


def some_clients(family: socket.AddressFamily, seed: int, count: int = CLIENTS) -> set[tuple[bytes, int]]:
    """Addresses and ports; the first byte keeps clear of addresses that no packet may come from."""
    rng = random.Random(seed)
    first, width = (b"\x0a", 4) if family is socket.AF_INET else (b"\xfd", 16)
    return {(first + rng.randbytes(width - 1), rng.randrange(1, 65536)) for _ in range(count)}


@pytest.mark.parametrize(
    ("family", "header", "kind"), [(socket.AF_INET, "ip", "ipv4_addr"), (socket.AF_INET6, "ip6", "ipv6_addr")]
)
@pytest.mark.parametrize("size", [size for _, size in SIZES])
def test_ten_thousand_clients_have_the_places_that_the_kernel_gives_them(
    family: socket.AddressFamily, header: str, kind: str, size: int
) -> None:
    clients = some_clients(family, size)
    with Host("hash") as host:
        host.run(["nft", "-f", "-"], input=rules(header, kind, size))
        with host.entered():
            send(clients, "127.0.0.1" if family is socket.AF_INET else "::1")
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


def elements(host: Host, name: str) -> set[tuple[str, int, Any]]:
    """The clients of a set with their places."""
    listed = json.loads(host.run(["nft", "-j", "list", "set", "inet", "h", name]).stdout)
    (found,) = [each["set"]["elem"] for each in listed["nftables"] if "set" in each]
    return {(address, port, place) for address, port, place in (each["concat"] for each in found)}


@pytest.mark.parametrize("scheduler", [Scheduler.SOURCE_HASH, Scheduler.MAGLEV])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_the_kernel_path_leads_each_client_to_the_endpoint_that_a_worker_would_dial(
    scheduler: Scheduler, family: socket.AddressFamily
) -> None:
    """Also when one of the endpoints is left out, which costs nothing but slots."""
    is_four = family is socket.AF_INET
    service = destination("10.96.0.1" if is_four else "fd96::1", Protocol.UDP, 53)
    endpoints = tuple(Target(Address(f"10.1.0.{n}" if is_four else f"fd01::{n}"), 5353) for n in range(1, 6))
    balancing = Balancing(scheduler, weights=(1, 2, 1, 3, 1), seed=SEED)
    by_port = scheduler is Scheduler.MAGLEV
    balancer = Balancer(rng=random.Random(1), probes_beside=True)
    balancer.update(endpoints, None, balancing)
    table = table_of(endpoints, balancing)
    spread = Spread("default/web", endpoints, endpoints, slots=table, client_hash=ClientHash(by_port, SEED))
    wanted = replace(rule_set({service: 7001}), spreads={Traffic(service): spread})
    header, kind = ("ip", "ipv4_addr") if is_four else ("ip6", "ipv6_addr")
    with Host("hash") as host, host.entered():
        host.ip("link add wire type veth peer name end", "link set wire arp off up", "link set end up")
        host.ip("addr add 10.1.0.254/16 dev wire", "route add default dev wire")
        host.ip("addr add fd01::fe/64 dev wire", "route add ::/0 dev wire")
        host.run(
            ["nft", "-f", "-"],
            input=f"""
            add table inet h
            add set inet h seen {{ type {kind} . inet_service . {kind}; size 65535; flags dynamic; }}
            add chain inet h c {{ type filter hook postrouting priority 0; }}
            add rule inet h c udp dport 5353 add @seen {{ {header} saddr . udp sport . {header} daddr }}
        """,
        )
        nftables = Nftables()
        try:
            assert await nftables.apply(wanted, verify=False)
            for dead in (None, endpoints[3]):
                if dead is not None:
                    balancer.failed(dead, 0.0, "refused")
                    left = tuple(target for target in endpoints if target != dead)
                    usable = frozenset(left)
                    slots = tuple(
                        next(it for it in (*table[place:], *table[:place]) if it in usable)
                        for place in range(len(table))
                    )
                    wanted = replace(wanted, spreads={Traffic(service): replace(spread, targets=left, slots=slots)})
                    assert await nftables.change(RuleChange(wanted.spreads))
                clients = some_clients(family, 1 if dead is None else 2, 2000)
                host.run(["nft", "flush", "set", "inet", "h", "seen"])
                send(clients, service.address, 53)
                seen = {(client, port): address for client, port, address in elements(host, "seen")}
                assert len(seen) == len(clients)
                for source, port in clients:
                    client = str(ipaddress.ip_address(source))
                    picked = balancer.pick(client, 0.5, port=port)
                    assert picked is not None
                    assert seen[client, port] == picked.address
            assert not await nftables.apply(wanted, verify=True), "the kernel has them, as they are read from it"
        finally:
            await nftables.close()
