"""Routes that are taken away: from the kernel's notifications to destinations."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink.messages import encode, frame
from kubeproxy.netfilter.routing.route_watch import among, lost_ways

NEW, DELETED = 24, 25
UNICAST, BLACKHOLE = 1, 6


def message(kind: int, to: str, type_: int = UNICAST) -> bytes:
    """A notification about a route."""
    network = ip_network(to)
    inet = {4: 2, 6: 10}[network.version]
    header = struct.pack("=BBBBBBBBI", inet, network.prefixlen, 0, 0, 254, 3, 0, type_, 0)
    destination = [(1, network.network_address.packed)] if network.prefixlen else []
    return frame(kind, header + encode([*destination, (15, b"\xfe\0\0\0")]), flags=0, sequence=0)


@pytest.mark.parametrize("to", ["10.3.0.2/32", "10.3.0.0/24", "0.0.0.0/0", "fd00:3::2/128", "::/0"])
def test_a_deleted_route_is_a_way_lost(to: str) -> None:
    assert list(lost_ways(message(DELETED, to))) == [ip_network(to)]
    assert list(lost_ways(message(NEW, to, BLACKHOLE))) == [ip_network(to)]
    assert list(lost_ways(message(NEW, to))) == []


def test_several_messages_of_one_read() -> None:
    data = message(DELETED, "10.3.0.2/32") + message(NEW, "10.3.1.2/32") + message(DELETED, "10.3.2.2/32")
    assert list(lost_ways(data)) == [ip_network("10.3.0.2/32"), ip_network("10.3.2.2/32")]


def test_odd_lengths_are_left_out() -> None:
    for length, size in product((33, 255), (0, 4, 5)):
        header = struct.pack("=BBBBBBBBI", 2, length, 0, 0, 254, 3, 0, 1, 0)
        assert list(lost_ways(frame(DELETED, header + encode([(1, b"x" * size)]), flags=0, sequence=0))) == []


@given(
    addresses=st.sets(
        st.one_of(st.ip_addresses(v=4, network="10.0.0.0/24"), st.ip_addresses(v=6, network="fd00::/120"))
    ),
    prefixes=st.lists(
        st.tuples(st.sampled_from(["10.0.0.0", "10.0.0.64", "fd00::", "fd00::80"]), st.integers(0, 8)), max_size=4
    ),
)
def test_addresses_within_prefixes(addresses: set[IPv4Address | IPv6Address], prefixes: list[tuple[str, int]]) -> None:
    networks = [ip_network(f"{ip}/{(128 if ':' in ip else 32) - bits}", strict=False) for ip, bits in prefixes]
    found = among({Address(str(it)) for it in addresses}, networks)
    assert found == {str(it) for it in addresses if any(it in network for network in networks)}


def test_a_default_route_has_all() -> None:
    assert among({Address("10.3.0.2"), Address("fd00::1")}, [ip_network("0.0.0.0/0")]) == {"10.3.0.2"}
    assert among({Address("10.3.0.2"), Address("fd00::1")}, [ip_network("::/0")]) == {"fd00::1"}
